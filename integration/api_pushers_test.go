package integration

import (
	"slices"
	"strings"
	"testing"
)

// pusherMembers are those of a pusher that is accepted, as clients see it.
var pusherMembers = []string{
	`"pushkey":"key"`,
	`"kind":"http"`,
	`"app_id":"org.example.app"`,
	`"app_display_name":"App"`,
	`"device_display_name":"Phone"`,
	`"lang":"en"`,
	`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
}

// pusherWith is a pusher with some of its members replaced, or added where
// there are none of the name.
func pusherWith(members ...string) string {
	all := slices.Clone(pusherMembers)
	for _, member := range members {
		name, _, _ := strings.Cut(member, ":")
		i := slices.IndexFunc(all, func(m string) bool { return strings.HasPrefix(m, name+":") })
		if i < 0 {
			all = append(all, member)
		} else {
			all[i] = member
		}
	}
	return "{" + strings.Join(all, ",") + "}"
}

// pusherWithout is a pusher that lacks some members.
func pusherWithout(names ...string) string {
	return "{" + strings.Join(slices.DeleteFunc(slices.Clone(pusherMembers), func(member string) bool {
		name, _, _ := strings.Cut(member, ":")
		return slices.Contains(names, strings.Trim(name, `"`))
	}), ",") + "}"
}

// listed is the answer of GET /pushers.
func listed(pushers ...string) string { return `200 {"pushers":[` + strings.Join(pushers, ",") + `]}` }

func TestPushers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	key := func(key string) string { return pusherWith(`"pushkey":"` + key + `"`) }
	set := func(body string) step { return step{"POST /pushers/set", body, done} }
	list := func(pushers ...string) step { return step{"GET /pushers", "", listed(pushers...)} }
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"none", []step{list()}},
		{"set", []step{set(pusherWith()), list(pusherWith())}},
		{"set under action", []step{set(`{"action":` + pusherWith() + `}`), list(pusherWith())}},
		{"set under action, beside others", []step{
			set(`{"kind":null,"action":` + pusherWith() + `,"app_id":5}`), list(pusherWith()),
		}},
		{"set twice", []step{set(pusherWith()), set(pusherWith()), list(pusherWith())}},
		{"in order of creation", []step{set(key("c")), set(key("a")), set(key("b")), list(key("c"), key("a"), key("b"))}},
		{"an update keeps the place", []step{
			set(key("c")), set(key("a")), set(key("b")),
			set(pusherWith(`"pushkey":"a"`, `"lang":"de"`)),
			list(key("c"), pusherWith(`"pushkey":"a"`, `"lang":"de"`), key("b")),
		}},
		{"deleted and set again it is the last", []step{
			set(key("a")), set(key("b")),
			set(`{"kind":null,"app_id":"org.example.app","pushkey":"a"}`), list(key("b")),
			set(key("a")), list(key("b"), key("a")),
		}},
		{"the last deleted, another set", []step{
			set(key("a")), set(key("b")),
			set(`{"kind":null,"app_id":"org.example.app","pushkey":"b"}`),
			set(key("c")), list(key("a"), key("c")),
		}},
		{"delete under action", []step{
			set(pusherWith()), set(`{"action":{"kind":null,"app_id":"org.example.app","pushkey":"key"}}`), list(),
		}},
		{"delete with every member", []step{set(pusherWith()), set(pusherWith(`"kind":null`)), list()}},
		{"delete what is not there", []step{
			set(pusherWith()), set(`{"kind":null,"app_id":"other","pushkey":"key"}`),
			set(`{"kind":null,"app_id":"org.example.app","pushkey":"other"}`), list(pusherWith()),
		}},
		{"the app_id is part of the identity", []step{
			set(pusherWith()), set(pusherWith(`"app_id":"other"`)), list(pusherWith(), pusherWith(`"app_id":"other"`)),
		}},
		{"a KIND is not a kind", []step{set(with(`"KIND":null`)(pusherWith())), list(with(`"KIND":null`)(pusherWith()))}},
		{"append is not handled", []step{
			set(key("a")), set(with(`"append":true`)(key("b"))), set(with(`"append":false`)(key("c"))),
			list(key("a"), key("b"), key("c")),
		}},
		{"members of data are kept", []step{
			set(pusherWith(`"data":{"format":"event_id_only","n":1.50e3,"url":"https://push.example.org/_matrix/push/v1/notify","<x>":[{}]}`)),
			list(pusherWith(`"data":{"format":"event_id_only","n":1.50e3,"url":"https://push.example.org/_matrix/push/v1/notify","<x>":[{}]}`)),
		}},
		{"profile_tag and unknown members are kept", []step{
			set(pusherWith(`"profile_tag":"x"`, `"org.example.n":9007199254740993`)),
			list(pusherWith(`"profile_tag":"x"`, `"org.example.n":9007199254740993`)),
		}},
		{"what the server keeps is neither set nor shown", []step{
			set(with(`"created":7,"device_id":"OTHER","org.matrix.msc3881.device_id":"OTHER"`)(pusherWith())), list(pusherWith()),
		}},
		{"characters of a pushkey", []step{
			set(pusherWith(`"pushkey":"<a>\"\\\n😀 [\""`)), list(pusherWith(`"pushkey":"<a>\"\\\n😀 [\""`)),
			set(`{"kind":null,"app_id":"org.example.app","pushkey":"<a>\"\\\n😀 [\""}`), list(),
		}},
		{"keys that differ in where they are cut", []step{
			set(pusherWith(`"app_id":"a\",\"b"`, `"pushkey":"c"`)), set(pusherWith(`"app_id":"a"`, `"pushkey":"b\",\"c"`)),
			list(pusherWith(`"app_id":"a\",\"b"`, `"pushkey":"c"`), pusherWith(`"app_id":"a"`, `"pushkey":"b\",\"c"`)),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) { s.caller(t, prefix).takeAll(test.steps...) })
		})
	}
}

func TestPusherValidation(t *testing.T) {
	t.Parallel()
	s := newService(t)
	url := func(url string) string { return pusherWith(`"data":{"url":"` + url + `"}`) }
	urlInvalid := failure(400, "M_INVALID_PARAM",
		"data.url must be an absolute https URL with the path /_matrix/push/v1/notify, without user info or fragment.")
	kindInvalid := failure(400, "M_INVALID_PARAM", "kind must be 'http' or null.")
	const path = "/_matrix/push/v1/notify"
	for _, test := range []struct{ name, body, want string }{
		{"kind unknown", pusherWith(`"kind":"org.matrix.msc4174.webpush"`), kindInvalid},
		{"kind empty", pusherWith(`"kind":""`), kindInvalid},
		{"kind in capitals", pusherWith(`"kind":"HTTP"`), kindInvalid},
		{"kind the word null", pusherWith(`"kind":"null"`), kindInvalid},
		{
			"email", pusherWith(`"kind":"email"`, `"app_id":"m.email"`, `"data":{}`),
			failure(400, "M_INVALID_PARAM", "kind must be 'http' or null: this server sends no email."),
		},
		{
			"the app_id of email", pusherWith(`"app_id":"m.email"`),
			failure(400, "M_INVALID_PARAM", "app_id 'm.email' is for email pushers."),
		},
		{"app_id empty", pusherWith(`"app_id":""`), failure(400, "M_INVALID_PARAM", "app_id must not be empty.")},
		{"pushkey empty", pusherWith(`"pushkey":""`), failure(400, "M_INVALID_PARAM", "pushkey must not be empty.")},
		{"app_id of 64 code points", pusherWith(`"app_id":"` + strings.Repeat("😀", 64) + `"`), done},
		{
			"app_id of 65 code points", pusherWith(`"app_id":"` + strings.Repeat("a", 65) + `"`),
			failure(400, "M_INVALID_PARAM", "app_id longer than 64 characters."),
		},
		{"pushkey of 512 bytes", pusherWith(`"pushkey":"` + strings.Repeat("é", 256) + `"`), done},
		{
			"pushkey of 513 bytes", pusherWith(`"pushkey":"` + strings.Repeat("k", 513) + `"`),
			failure(400, "M_INVALID_PARAM", "pushkey longer than 512 bytes."),
		},
		{
			"data of more than 16 KiB", pusherWith(`"data":{"url":"https://x` + path + `","x":"` + strings.Repeat("x", 16<<10) + `"}`),
			failure(400, "M_INVALID_PARAM", "data longer than 16384 bytes."),
		},
		{
			"url of more than 2,048 bytes", url("https://x" + path + "?" + strings.Repeat("x", 2048)),
			failure(400, "M_INVALID_PARAM", "data.url longer than 2048 bytes."),
		},
		{"url with a port", url("https://push.example.org:8443" + path), done},
		{"url with an escaped slash", url(`https:\/\/push.example.org\/_matrix\/push\/v1\/notify`), done},
		{"url of plain http", url("http://push.example.org" + path), urlInvalid},
		{"url of another scheme", url("ftp://push.example.org" + path), urlInvalid},
		{"url of a file", url("file://" + path), urlInvalid},
		{"url without a scheme", url("//push.example.org" + path), urlInvalid},
		{"url that is only a path", url(path), urlInvalid},
		{"url without a host", url("https://" + path), urlInvalid},
		{"url with a port and no host", url("https://:443" + path), urlInvalid},
		{"url with another path", url("https://push.example.org/notify"), urlInvalid},
		{"url without a path", url("https://push.example.org"), urlInvalid},
		{"url with a longer path", url("https://push.example.org" + path + "/"), urlInvalid},
		{"url with a prefixed path", url("https://push.example.org/x" + path), urlInvalid},
		{"url with dot segments", url("https://push.example.org/x/.." + path), urlInvalid},
		{"url with an encoded path", url("https://push.example.org/_matrix%2Fpush/v1/notify"), urlInvalid},
		{"url with user info", url("https://user:pass@push.example.org" + path), urlInvalid},
		{"url with a fragment", url("https://push.example.org" + path + "#x"), urlInvalid},
		{"url with a space", url("https://push.example.org " + path), urlInvalid},
		{"url with a control character", url(`https://push.example.org\n` + path), urlInvalid},
		{"url empty", url(""), urlInvalid},
		{"url is no url", url("x"), urlInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				s.caller(t, prefix).take(step{"POST /pushers/set", test.body, test.want})
			})
		})
	}
}

// A refused change of an existing pusher leaves it as it is: [caller.take]
// compares what is stored.
func TestRefusedPusherHasNoEffect(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		c.change("POST /pushers/set " + pusherWith())
		for _, body := range []string{
			pusherWith(`"data":{"url":"http://push.example.org/_matrix/push/v1/notify"}`),
			pusherWith(`"kind":"other"`),
			pusherWith(`"lang":5`),
			pusherWithout("lang"),
			pusherWithout("kind"),
		} {
			if a := c.send("POST /pushers/set", body); a.status != 400 {
				t.Errorf("%s: got %s", body, a)
			}
		}
		c.take(step{"GET /pushers", "", listed(pusherWith())})
	})
}

func TestNumberOfPushers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		key := func(i int) string { return `"pushkey":"` + strings.Repeat("k", i) + `"` }
		for i := range 100 {
			c.change("POST /pushers/set " + pusherWith(key(i+1)))
		}
		c.takeAll(
			step{"POST /pushers/set", pusherWith(key(101)), failure(400, "M_INVALID_PARAM", "A user has at most 100 pushers.")},
			step{"POST /pushers/set", pusherWith(key(1), `"lang":"de"`), done},
			step{"POST /pushers/set", pusherWith(key(2), `"kind":null`), done},
			step{"POST /pushers/set", pusherWith(key(101)), done},
		)
	})
}
