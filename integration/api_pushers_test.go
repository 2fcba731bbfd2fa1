package integration

import (
	"slices"
	"strings"
	"testing"
)

var pusherMembers = []string{
	`"pushkey":"key"`,
	`"kind":"http"`,
	`"app_id":"org.example.app"`,
	`"app_display_name":"App"`,
	`"device_display_name":"Phone"`,
	`"lang":"en"`,
	`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
}

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

func pusherWithout(names ...string) string {
	return "{" + strings.Join(slices.DeleteFunc(slices.Clone(pusherMembers), func(member string) bool {
		name, _, _ := strings.Cut(member, ":")
		return slices.Contains(names, strings.Trim(name, `"`))
	}), ",") + "}"
}

func listed(pushers ...string) string { return `200 {"pushers":[` + strings.Join(pushers, ",") + `]}` }

func TestPushers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	key := func(key string) string { return pusherWith(`"pushkey":"` + key + `"`) }
	set := func(body string) step { return step{"POST /pushers/set", body, done} }
	list := func(pushers ...string) step { return step{"GET /pushers", "", listed(pushers...)} }
	remove := func(appID, pushkey string) step {
		return set(`{"kind":null,"app_id":"` + appID + `","pushkey":"` + pushkey + `"}`)
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"none", []step{list()}},
		{"set twice", []step{set(pusherWith()), set(pusherWith()), list(pusherWith())}},
		{"set under action, beside others", []step{
			set(`{"kind":null,"action":` + pusherWith() + `,"app_id":5}`), list(pusherWith()),
		}},
		{"in order of creation, an update keeps the place", []step{
			set(key("c")), set(key("a")), set(key("b")), list(key("c"), key("a"), key("b")),
			set(pusherWith(`"pushkey":"a"`, `"lang":"de"`)),
			list(key("c"), pusherWith(`"pushkey":"a"`, `"lang":"de"`), key("b")),
		}},
		{"deleted and set again it is the last", []step{
			set(key("a")), set(key("b")), remove("org.example.app", "a"), list(key("b")),
			set(key("a")), list(key("b"), key("a")),
		}},
		{"delete under action", []step{
			set(pusherWith()), set(`{"action":{"kind":null,"app_id":"org.example.app","pushkey":"key"}}`), list(),
		}},
		{"delete with every member", []step{set(pusherWith()), set(pusherWith(`"kind":null`)), list()}},
		{"delete a missing pusher", []step{
			set(pusherWith()), remove("other", "key"), remove("org.example.app", "other"), list(pusherWith()),
		}},
		{"the app_id is part of the identity", []step{
			set(pusherWith()), set(pusherWith(`"app_id":"other"`)), list(pusherWith(), pusherWith(`"app_id":"other"`)),
		}},
		{"an unknown member KIND", []step{set(with(`"KIND":null`)(pusherWith())), list(with(`"KIND":null`)(pusherWith()))}},
		{"append is not handled", []step{
			set(key("a")), set(with(`"append":true`)(key("b"))), set(with(`"append":"no"`)(key("c"))),
			list(key("a"), key("b"), key("c")),
		}},
		{"profile_tag and unknown members are kept", []step{
			set(pusherWith(`"data":{"n":1.50e3,"url":"https://push.example.org/_matrix/push/v1/notify","<x>":[{}]}`,
				`"profile_tag":"x"`, `"org.example.n":9007199254740993`)),
			list(pusherWith(`"data":{"n":1.50e3,"url":"https://push.example.org/_matrix/push/v1/notify","<x>":[{}]}`,
				`"profile_tag":"x"`, `"org.example.n":9007199254740993`)),
		}},
		{"clients cannot set or see the server's own members", []step{
			set(with(`"created":7,"device_id":"OTHER","org.matrix.msc3881.device_id":"OTHER"`)(pusherWith())), list(pusherWith()),
		}},
		{"keys of any characters", []step{
			set(pusherWith(`"app_id":"a\",\"b"`, `"pushkey":"<c>\n😀 [\""`)), set(pusherWith(`"app_id":"a"`, `"pushkey":"b\",\"<c>\n😀 [\""`)),
			list(pusherWith(`"app_id":"a\",\"b"`, `"pushkey":"<c>\n😀 [\""`), pusherWith(`"app_id":"a"`, `"pushkey":"b\",\"<c>\n😀 [\""`)),
			remove(`a\",\"b`, `<c>\n😀 [\"`), remove(`a`, `b\",\"<c>\n😀 [\"`), list(),
		}},
	} {
		t.Run(test.name, func(t *testing.T) { s.caller(t, r0).takeAll(test.steps...) })
	}
}
