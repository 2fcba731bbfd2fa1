package integration

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text+"\n" != string(want) {
		t.Errorf("%s\n got %s\nwant %s", path, text, want)
	}
}

// loneAlice is a user whose service has no other.
func loneAlice(t *testing.T, prefix string) *caller {
	return &caller{t, newService(t), prefix, alice}
}

func TestStoredEvent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		file    string
		changes []string
	}{
		{"fresh_event.json", nil},
		{"edited_event.json", []string{
			`PUT /pushrules/global/override/a {"rule":{"actions":["notify"],"conditions":[{"kind":"x","n":1.0}]}}`,
			`PUT /pushrules/global/override/b {"actions":[]}`,
			`PUT /pushrules/global/override/c?after=b {"actions":[]}`,
			`DELETE /pushrules/global/override/b`,
			`PUT /pushrules/global/override/.m.rule.master/enabled {"enabled":true}`,
			`PUT /pushrules/global/content/d {"rule":{"actions":["dont_notify"],"pattern":"<b>"}}`,
			`PUT /pushrules/global/content/e {"actions":[],"pattern":"é\"😀"}`,
			`DELETE /pushrules/global/content/e`,
			`PUT /pushrules/global/room/!r:example.org {"rule":{"actions":[],"enabled":false}}`,
			`PUT /pushrules/global/sender/@b:example.org {"actions":["org.example",{"set_tweak":"sound","value":"x"}]}`,
			`PUT /pushrules/global/underride/f {"actions":[]}`,
			`PUT /pushrules/global/underride/.m.rule.message/actions {"actions":[]}`,
		}},
	} {
		t.Run(test.file, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := loneAlice(t, prefix)
				c.send("GET /pushrules/", "")
				for _, change := range test.changes {
					request, body, _ := strings.Cut(change, " {")
					c.send(request, "{"+body)
				}
				golden(t, test.file, c.event())
			})
		})
	}
}

// claimed is a pusher's claim to its pushkey.
var claimed = regexp.MustCompile(`,"claim":\{"number":(\d{16}),"removes":(0|\d{16})(?:,"set_at":\d+)?\}`)

func TestStoredPushers(t *testing.T) {
	t.Parallel()
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := loneAlice(t, prefix)
		c.change(
			"POST /pushers/set "+pusherWith(`"pushkey":"gone"`),
			"POST /pushers/set "+pusherWith(`"pushkey":"<k>\"1"`, `"profile_tag":"x"`, `"org.example":1.0`),
			"POST /pushers/set "+pusherWith(`"app_id":"other"`, `"data":{"url":"https://push.example.org/_matrix/push/v1/notify","n":1.50}`),
			"POST /pushers/set "+pusherWith(`"pushkey":"gone"`, `"kind":null`),
		)
		if claim := claimed.FindStringSubmatch(c.stored()); claim[2] != map[string]string{r0: "0", v3: claim[1]}[prefix] {
			t.Errorf("the claim %s removes others before %s", claim[1], claim[2])
		}
		lines := strings.Split(strings.TrimSpace(claimed.ReplaceAllString(c.stored(), "")), "\n")
		slices.Sort(lines)
		golden(t, "pushers.txt", strings.Join(lines, "\n"))
	})
}

// The Redis keys of a user: name, type, time to live.
func TestKeys(t *testing.T) {
	t.Parallel()
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := loneAlice(t, prefix)
		c.send("GET /pushrules/", "")
		c.change("POST /pushers/set " + pusherWith())
		type key struct {
			name, kind string
			ttl        time.Duration
		}
		want := []key{
			{"account_data:{@alice:example.org}:m.push_rules", "string", 0},
			{"pushers:{@alice:example.org}", "hash", 0},
			{"pushkey:{TrPqT4hq7xVvC68N_gROJpFfMpudhVLdg2eymUZ6K9U}", "string", 0},
		}
		redis := c.on.redis
		var got []key
		for _, name := range redis.Keys() {
			got = append(got, key{name, redis.Type(name), redis.TTL(name)})
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}

		c.change("POST /pushers/set " + pusherWith(`"kind":null`))
		redis.FastForward(10 * time.Minute)
		if got, want := redis.Keys(), []string{want[0].name}; !slices.Equal(got, want) {
			t.Errorf("a while after the last pusher went: got %v, want %v", got, want)
		}
	})
}

// Requests that store nothing new leave no trace.
func TestReadsStoreNothing(t *testing.T) {
	t.Parallel()
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := loneAlice(t, prefix)
		for _, endpoint := range ruleEndpoints[2:] {
			c.take(step{endpoint.request, endpoint.body, eventMissing})
		}
		c.takeAll(
			step{"GET /pushers", "", listed()},
			step{"POST /pushers/set", pusherWith(`"kind":null`), done},
		)
		if keys := c.on.redis.Keys(); len(keys) != 0 {
			t.Errorf("stored: %v", keys)
		}
	})
}

// unreadable are stored values that are no push rules event, each with the
// cause that the answer shows; of syntax errors only how the cause begins,
// up to a colon.
var unreadable = []struct{ name, event, cause string }{
	{"empty", "", "Not valid JSON: "},
	{"white space", "  ", "Not valid JSON: "},
	{"words", "some words", "Not valid JSON: "},
	{"words that begin like JSON", "not JSON", ""},
	{"cut off", `{"type":"m.push_rules","content":{"global":{"override":[`, "Not valid JSON: "},
	{"trailing data", `{"content":{"global":{}}} {}`, "Not valid JSON: "},
	{"trailing data after no content", `{} x`, "Not valid JSON: "},
	{"invalid UTF-8", "{\"content\":{\"global\":{\"x\":\"\xFF\"}}}", "Not valid JSON: "},
	{"lone surrogate", `{"content":{"global":{"x":"\ud800"}}}`, "Not valid JSON: "},
	{"event null", `null`, "Must be an object"},
	{"event array", `[]`, "Must be an object"},
	{"event number", `5`, "Must be an object"},
	{"event string", `"m.push_rules"`, "Must be an object"},
	{"content twice", `{"content":{"global":{}},"content":{"global":{}}}`, "Key given twice: content"},
	{"content empty", `{"type":"m.push_rules","content":{}}`, "Missing parameter: content.global"},
	{"content without global", `{"content":{"device":{}}}`, "Missing parameter: content.global"},
	{"global null", `{"content":{"global":null}}`, "content.global must be an object"},
	{"global array", `{"content":{"global":[]}}`, "content.global must be an object"},
	{"global string", `{"content":{"global":"x"}}`, "content.global must be an object"},
	{"global number", `{"content":{"global":1}}`, "content.global must be an object"},
	{"kind null", `{"content":{"global":{"room":null}}}`, "content.global.room must be an array"},
	{"kind object", `{"content":{"global":{"override":{}}}}`, "content.global.override must be an array"},
	{"rule string", `{"content":{"global":{"sender":["x"]}}}`, "content.global.sender[0] must be an object"},
	{"rule empty", `{"content":{"global":{"sender":[{}]}}}`, "Missing parameters: content.global.sender[0].rule_id, " +
		"content.global.sender[0].default, content.global.sender[0].enabled, content.global.sender[0].actions"},
	{"rule_id number", rules("room", `{"rule_id":1,"default":false,"enabled":true,"actions":[]}`), "content.global.room[0].rule_id must be a string"},
	{"rule_id missing", rules("room", `{"default":false,"enabled":true,"actions":[]}`), "Missing parameter: content.global.room[0].rule_id"},
	{"default string", rules("room", `{"rule_id":"a","default":"no","enabled":true,"actions":[]}`), "content.global.room[0].default must be a boolean"},
	{"enabled number", rules("room", `{"rule_id":"a","default":false,"enabled":1,"actions":[]}`), "content.global.room[0].enabled must be a boolean"},
	{"enabled missing", rules("room", `{"rule_id":"a","default":false,"actions":[]}`), "Missing parameter: content.global.room[0].enabled"},
	{"actions null", rules("room", `{"rule_id":"a","default":false,"enabled":true,"actions":null}`), "content.global.room[0].actions must be an array"},
	{"actions missing", rules("room", `{"rule_id":"a","default":false,"enabled":true}`), "Missing parameter: content.global.room[0].actions"},
	{"conditions object", rules("override", `{"rule_id":"a","default":false,"enabled":true,"actions":[],"conditions":{}}`),
		"content.global.override[0].conditions must be an array"},
	{"pattern missing", rules("content", `{"rule_id":"a","default":false,"enabled":true,"actions":[]}`), "Missing parameter: content.global.content[0].pattern"},
	{"pattern number", rules("content", `{"rule_id":"a","default":false,"enabled":true,"actions":[],"pattern":1}`),
		"content.global.content[0].pattern must be a string"},
	{"second rule", rules("room", `{"rule_id":"a","default":false,"enabled":true,"actions":[]}`, `[]`), "content.global.room[1] must be an object"},
	{"key of a rule twice", rules("room", `{"rule_id":"a","default":false,"enabled":true,"enabled":false,"actions":[]}`),
		"Key given twice: content.global.room[0].enabled"},
}

// rules is an event with rules of one kind.
func rules(kind string, rules ...string) string {
	return `{"type":"m.push_rules","content":{"global":{"` + kind + `":[` + strings.Join(rules, ",") + `]}}}`
}

func TestUnreadableEvent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range unreadable {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.caller(t, prefix)
				c.plant(test.event)
				for _, endpoint := range ruleEndpoints {
					text := "Invalid push rules account data event in database: " + test.cause
					if strings.HasSuffix(text, ": ") {
						c.refuse(endpoint.request, endpoint.body, 500, "M_UNKNOWN", text)
					} else {
						c.take(step{endpoint.request, endpoint.body, failure(500, "M_UNKNOWN", text)})
					}
				}
				if c.event() != test.event {
					t.Errorf("stored is %q, was %q", c.event(), test.event)
				}
				wantLogged(t, s, len(ruleEndpoints))
			})
		})
	}
}

// wantLogged takes the entries from the service's log, which must be as many.
func wantLogged(t *testing.T, s *service, count int) {
	t.Helper()
	if logged := s.host.logs.TakeAll(); len(logged) != count {
		t.Errorf("%d entries are logged, want %d: %v", len(logged), count, logged)
	}
}

// The legacy ids need no event to be answered.
func TestLegacyIDsOfAnUnreadableEvent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		c.plant("some words")
		c.takeAll(
			step{"GET /pushrules/global/override/.m.rule.roomnotif", "", ruleMissing},
			step{"GET /pushrules/global/override/.m.rule.roomnotif/actions", "", ruleMissing},
			step{"GET /pushrules/global/override/.m.rule.roomnotif/enabled", "", `200 {"enabled":false}`},
		)
	})
}

func TestKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		if _, err := s.redis.Push(eventKey(c.user), "x"); err != nil {
			t.Fatal(err)
		}
		if err := s.redis.Set(pushersKey(c.user), "x"); err != nil {
			t.Fatal(err)
		}
		const cause = "the key holds another type of value"
		for _, endpoint := range ruleEndpoints {
			c.take(step{endpoint.request, endpoint.body,
				failure(500, "M_UNKNOWN", "Invalid push rules account data event in database: "+cause)})
		}
		c.takeAll(
			step{"GET /pushers", "", failure(500, "M_UNKNOWN", "Invalid pusher in database: "+cause)},
			step{"POST /pushers/set", pusherWith(), failure(500, "M_UNKNOWN", "Invalid pusher in database: "+cause)},
		)
		if list, err := s.redis.List(eventKey(c.user)); err != nil || !slices.Equal(list, []string{"x"}) {
			t.Errorf("the event's key holds %v, %v", list, err)
		}
		if text, err := s.redis.Get(pushersKey(c.user)); err != nil || text != "x" {
			t.Errorf("the pushers' key holds %v, %v", text, err)
		}
		wantLogged(t, s, len(ruleEndpoints)+2)
	})
}

func TestUnreadablePushers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const field = `["org.example.app","key"]`
	for _, test := range []struct{ name, text, cause string }{
		{"no JSON", "words", "Not valid JSON: "},
		{"no object", "[]", "Must be an object"},
		{"a member missing", pusherWithout("lang"), "Missing parameters: created, device_id, claim, lang"},
		{"another key", pusherWith(`"pushkey":"secret"`, `"created":1`, `"device_id":""`, `"claim":{"number":1,"removes":0,"set_at":1}`), "the field is not the pusher's key"},
		{"created is no integer", pusherWith(`"created":1.5`), "created must be an integer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.caller(t, prefix)
				s.redis.HSet(pushersKey(c.user), field, test.text)
				for _, request := range []string{"GET /pushers", "POST /pushers/set"} {
					c.refuse(request, pusherWith(), 500, "M_UNKNOWN", "Invalid pusher in database: "+test.cause)
				}
				if text := s.redis.HGet(pushersKey(c.user), field); text != test.text {
					t.Errorf("stored is %q, was %q", text, test.text)
				}
				wantLogged(t, s, 2)
			})
		})
	}
}

// An event whose content is missing or no object counts as a missing event.
func TestEventWithoutContent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, event, kept string }{
		{"no members", `{}`, ""},
		{"no content", `{"type":"m.push_rules"}`, ""},
		{"null", `{"type":"m.push_rules","content":null}`, ""},
		{"number", `{"type":"m.push_rules","content":1}`, ""},
		{"boolean", `{"type":"m.push_rules","content":false}`, ""},
		{"string", `{"type":"m.push_rules","content":"{}"}`, ""},
		{"array", `{"type":"m.push_rules","content":[{}]}`, ""},
		{"other case", `{"type":"m.push_rules","Content":{"global":{}}}`, `,"Content":{"global":{}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.caller(t, prefix)
				c.plant(test.event)
				for _, endpoint := range ruleEndpoints[2:] {
					c.take(step{endpoint.request, endpoint.body, eventMissing})
				}
				for _, request := range []string{"GET /pushrules/", "GET /pushrules/global/"} {
					c.plant(test.event)
					c.send(request, "")
					fresh := s.owner(t, prefix)
					want := strings.ReplaceAll(fresh.event(), fresh.user, c.user)
					want = strings.TrimSuffix(want, "}") + test.kept + "}"
					if c.event() != want {
						t.Errorf("%s stores %s\nwant %s", request, c.event(), want)
					}
				}
				c.takeAll(step{"PUT /pushrules/global/room/a", `{"actions":[]}`, done})
			})
		})
	}
}

// Without a legacy rule the set is returned and left as it is: spacing, order,
// unknown members and missing defaults included.
func TestSetWithoutLegacyRulesIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, global string }{
		{"empty", `{}`},
		{"no defaults", `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}`},
		{"spacing and order", "{ \"underride\" : [ ],\n\t\"override\": [ {\"actions\":[ \"notify\" ], \"enabled\" :true,\"default\":false,\"rule_id\":\"a\"} ] }"},
		{"stale default", `{"override":[{"rule_id":".m.rule.old","default":true,"enabled":true,"actions":[]}]}`},
		{"unknown kinds and members", `{"org.example":[{"n":1.00}],"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[],"x":{"y":null}}],"n":1e400}`},
		{"escapes", `{"room":[{"rule_id":"\u0061\/","default":false,"enabled":true,"actions":["<\u003c"]}]}`},
		{"master is not first", `{"override":[{"rule_id":"a","default":false,"enabled":true,"actions":[]},` +
			`{"rule_id":".m.rule.master","default":true,"enabled":false,"actions":[]}]}`},
		{"legacy name in a pattern", `{"content":[{"rule_id":"a","default":false,"enabled":true,"actions":[],"pattern":".m.rule.roomnotif"}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.caller(t, prefix)
				event := ` {"content": {"global":` + test.global + `,"device":{}}, "x":[1]}` + "\n"
				c.plant(event)
				bare := "200 " + test.global
				wrapped := `200 {"global":` + test.global + "}"
				c.take(step{"GET /pushrules/", "", wrapped})
				if prefix == r0 {
					bare = wrapped
				}
				c.take(step{"GET /pushrules/global/", "", bare})
				if c.event() != event {
					t.Errorf("stored is %q, was %q", c.event(), event)
				}
			})
		})
	}
}

// What the service does not know survives a write of something else.
func TestUnknownMembersSurviveWrites(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const event = `{"x":[1, 2.0],"content":{"device":{"n":1e400},"global":{"org.example":[{"a":1.00, "b":null}],` +
		`"room":[{"z":{"y":[]},"rule_id":"a","default":false,"enabled":true,"conditions":[{"kind":5}],"actions":[5,"coalesce",{"set_tweak":7}]}],` +
		`"override":[{"rule_id":"o","default":false,"enabled":true,"pattern":"p","actions":[],"conditions":[{"kind":5},"s"]}]}},"origin_server_ts":12345678901234567890}`
	const room = `"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[5,"coalesce",{"set_tweak":7}],"z":{"y":[]},"conditions":[{"kind":5}]}]`
	const want = `{"type":"m.push_rules","content":{"global":{` +
		`"override":[{"rule_id":"o","default":false,"enabled":%,"conditions":[{"kind":5},"s"],"actions":[],"pattern":"p"}],` +
		`"content":[],` + room + `,"sender":[],"underride":[],"org.example":[{"a":1.00, "b":null}]},` +
		`"device":{"n":1e400}},"x":[1, 2.0],"origin_server_ts":12345678901234567890}`
	stored := func(enabled string) string { return strings.Replace(want, "%", enabled, 1) }
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		c.plant(event)
		c.take(step{"GET /pushrules/global/room/a", "",
			c.rule(`{"rule_id":"a","default":false,"enabled":true,"actions":[5,"coalesce",{"set_tweak":7}],"z":{"y":[]},"conditions":[{"kind":5}]}`)})
		c.change(`PUT /pushrules/global/override/o/enabled {"enabled":false}`)
		if c.event() != stored("false") {
			t.Errorf("set enabled:\n got %s\nwant %s", c.event(), stored("false"))
		}
		c.change(
			`PUT /pushrules/global/override/p {"actions":[]}`,
			`PUT /pushrules/global/override/p/actions {"actions":["notify"]}`,
			`DELETE /pushrules/global/override/p`,
			`PUT /pushrules/global/override/o/enabled {"enabled":true}`,
		)
		if c.event() != stored("true") {
			t.Errorf("put, actions, delete, enabled:\n got %s\nwant %s", c.event(), stored("true"))
		}
	})
}

// Another writer may spell names with escapes, and use those of the format where
// they mean something else. A rule is found where it is, and put there.
func TestNamesOfTheFormatWrittenByOthers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const b = `{"rule_id":"b","default":false,"enabled":true,"actions":["mine"]}`
	const other = `"x":{"room":[{"a":1}]}`
	for name, set := range map[string]string{
		"an escaped kind": `{"override":[],"content":[],"\u0072oom":[` + b + `],"sender":[],"underride":[],` + other + `}`,
		"an escaped rule_id": `{"override":[{"rule_id":"o","default":false,"enabled":true,"conditions":[{"rule_id":"b"}],"actions":[]}],` +
			`"content":[],"room":[` + strings.Replace(b, "rule_id", `rule\u005fid`, 1) + `],"sender":[],"underride":[],` + other + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.caller(t, prefix)
				c.plant(`{"type":"m.push_rules","content":{"global":` + set + `}}`)
				c.takeAll(
					step{"GET /pushrules/global/room/b", "", c.rule(b)},
					step{"PUT /pushrules/global/room/c", `{"actions":[]}`, done},
				)
				const room = `"room":[{"rule_id":"c","default":false,"enabled":true,"actions":[]},` + b + `]`
				if event := c.event(); !strings.Contains(event, room) || !strings.Contains(event, other) {
					t.Errorf("stored is %s", event)
				}
			})
		})
	}
}

// Members of the content that the service does not know are part of what
// account data and /sync show, before and after a change and a repair.
func TestUnknownMembersOfTheContentAreShown(t *testing.T) {
	t.Parallel()
	var push module.HostService
	var syncs module.SyncService
	s := newService(t, fx.Populate(&push, &syncs))
	const set = `{"override":[],"content":[],"room":[%],"sender":[],"underride":[]}`
	const room = `{"rule_id":"a","default":false,"enabled":true,"actions":[]}`
	const rest = `,"device":{"n":1e400},"org.example":[1, 2.0]`
	c := s.caller(t, v3)
	shown := func(want string) {
		t.Helper()
		content, err := push.AccountData(t.Context(), mxid.UserID(c.user))
		if err != nil || string(content) != want {
			t.Errorf("account data is %s, %v\nwant %s", content, err, want)
		}
		synced, err := syncs.Since(t.Context(), mxid.UserID(c.user), 0)
		if got := string(synced.Content.AppendJSON(nil)); err != nil || got != want {
			t.Errorf("a sync shows %s, %v\nwant %s", got, err, want)
		}
	}
	content := func(rules string) string { return `{"global":` + strings.Replace(set, "%", rules, 1) + rest + `}` }

	c.plant(`{"content":` + content("") + `}`)
	shown(content(""))
	c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
	shown(content(room))
	legacy := `{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":[]}`
	c.plant(`{"content":` + content(room+","+legacy) + `}`)
	c.send("GET /pushrules/", "")
	var repaired struct{ Global json.RawMessage }
	if err := json.Unmarshal([]byte(c.send("GET /pushrules/", "").body), &repaired); err != nil {
		t.Fatal(err)
	}
	shown(`{"global":` + string(repaired.Global) + rest + `}`)
}

// A rule that is only marked as a default is the user's: it stays where the
// defaults are merged, and others may stand beside it. It cannot be deleted, but
// replaced.
func TestDefaultFlagWithoutADot(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		c.plant(rules("room", `{"rule_id":"a","default":true,"enabled":true,"actions":["mine"]}`,
			`{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":[]}`))
		c.send("GET /pushrules/", "")
		c.takeAll(
			step{"GET /pushrules/global/room/a", "", c.rule(`{"rule_id":"a","default":true,"enabled":true,"actions":["mine"]}`)},
			step{"DELETE /pushrules/global/room/a", "", deleteDefault},
			step{"PUT /pushrules/global/room/b?before=a", `{"actions":[]}`, done},
			step{"PUT /pushrules/global/room/c?after=a", `{"actions":[]}`, done},
		)
		if got := c.ids("room"); got != "b a c" {
			t.Errorf("got %s", got)
		}
		c.takeAll(
			step{"PUT /pushrules/global/room/a", `{"actions":[]}`, done},
			step{"DELETE /pushrules/global/room/a", "", done},
		)
	})
}

// A rule whose id starts with a dot is the server's, whatever it is marked as
// and however its id is written.
func TestDotWithoutADefaultFlag(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		for _, id := range []string{".a", `\u002ea`} {
			c := s.caller(t, prefix)
			c.plant(rules("room", `{"rule_id":"`+id+`","default":false,"enabled":true,"actions":[]}`))
			c.takeAll(
				step{"DELETE /pushrules/global/room/.a", "", deleteDefault},
				step{"PUT /pushrules/global/room/b?before=.a", `{"actions":[]}`, anchorDefault},
				step{"PUT /pushrules/global/room/b?after=.a", `{"actions":[]}`, anchorDefault},
			)
		}
	})
}

// The whole-set read of a set with any legacy rule removes all three and
// merges the current defaults.
func TestLegacyRulesAreRemovedAndDefaultsMerged(t *testing.T) {
	t.Parallel()
	s := newService(t)
	legacy := map[string]string{
		".m.rule.contains_display_name": "override",
		".m.rule.roomnotif":             "override",
		".m.rule.contains_user_name":    "content",
	}
	for id, kind := range legacy {
		for _, request := range []string{"GET /pushrules/", "GET /pushrules/global/"} {
			t.Run(id+" "+request, func(t *testing.T) {
				onBothPrefixes(t, func(t *testing.T, prefix string) {
					c := s.caller(t, prefix)
					rule := `{"rule_id":"` + id + `","default":true,"enabled":true,"pattern":"alice","actions":["notify"]}`
					c.plant(`{"content":{"global":{"` + kind + `":[` + rule + `]}}}`)
					answer := c.send(request, "")
					fresh := s.owner(t, prefix)
					if want := strings.ReplaceAll(fresh.event(), fresh.user, c.user); c.event() != want {
						t.Errorf("stored is %s\nwant %s", c.event(), want)
					}
					c.take(step{request, "", answer.String()})
				})
			})
		}
	}
}

func TestMergeKeepsWhatIsTheUsers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const user1 = `{"rule_id":"user1","default":false,"enabled":false,"conditions":[],"actions":[1.0]}`
	const user2 = `{"rule_id":"user2","default":false,"enabled":true,"conditions":[{"kind":"x"}],"actions":[],"extra":true}`
	const user3 = `{"rule_id":"user3","default":false,"enabled":true,"pattern":"p","actions":[]}`
	const event = `{"content":{"global":{"override":[` +
		user1 + `,` +
		`{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"conditions":[],"actions":["notify"]},` +
		`{"rule_id":".m.rule.old","default":true,"enabled":true,"conditions":[],"actions":["notify"]},` +
		`{"rule_id":".m.rule.tombstone","default":true,"enabled":false,"conditions":[{"kind":"stale"}],"actions":["mine",{"x":1.0}]},` +
		`{"rule_id":".m.rule.master","default":true,"enabled":true,"conditions":[],"actions":["also mine"]},` +
		user2 +
		`],"content":[{"rule_id":".m.rule.contains_user_name","default":true,"enabled":true,"pattern":"a","actions":[]},` + user3 + `],` +
		`"org.example":[{"rule_id":".m.rule.roomnotif"}],` +
		`"underride":[{"rule_id":".m.rule.message","default":false,"enabled":false,"conditions":[],"actions":[]},` +
		`{"rule_id":"user4","default":false,"enabled":true,"conditions":[],"actions":[]}]},"device":{}},"x":1}`

	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		c.plant(event)
		answer := c.send("GET /pushrules/", "")

		// The expected set is that of a fresh user, changed at every place
		// that the user's set decides.
		fresh := s.owner(t, prefix)
		want := strings.ReplaceAll(fresh.event(), fresh.user, c.user)
		replace := func(old, new string) {
			t.Helper()
			if strings.Count(want, old) != 1 {
				t.Fatalf("%s is not once in %s", old, want)
			}
			want = strings.Replace(want, old, new, 1)
		}
		replace(`{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]},`,
			`{"rule_id":".m.rule.master","default":true,"enabled":true,"conditions":[],"actions":["also mine"]},`+user1+`,`+user2+`,`)
		replace(`{"rule_id":".m.rule.tombstone","default":true,"enabled":true,`,
			`{"rule_id":".m.rule.tombstone","default":true,"enabled":false,`)
		replace(`{"kind":"event_match","key":"state_key","pattern":""}],"actions":["notify",{"set_tweak":"highlight"}]},{"rule_id":".m.rule.reaction"`,
			`{"kind":"event_match","key":"state_key","pattern":""}],"actions":["mine",{"x":1.0}]},{"rule_id":".m.rule.reaction"`)
		replace(`"content":[]`, `"content":[`+user3+`]`)
		replace(`"underride":[`, `"underride":[{"rule_id":"user4","default":false,"enabled":true,"conditions":[],"actions":[]},`)
		replace(`{"rule_id":".m.rule.message","default":true,"enabled":true,"conditions":[{"kind":"event_match","key":"type","pattern":"m.room.message"}],"actions":["notify"]}`,
			`{"rule_id":".m.rule.message","default":true,"enabled":false,"conditions":[{"kind":"event_match","key":"type","pattern":"m.room.message"}],"actions":[]}`)
		want = strings.TrimSuffix(want, "}}}") + `,"org.example":[{"rule_id":".m.rule.roomnotif"}]},"device":{}},"x":1}`

		if c.event() != want {
			t.Errorf("stored is\n%s\nwant\n%s", c.event(), want)
		}
		var body, stored struct{ Global, Content json.RawMessage }
		if json.Unmarshal([]byte(answer.body), &body) != nil || json.Unmarshal([]byte(c.event()), &stored) != nil {
			t.Fatalf("no JSON: %s, %s", answer, c.event())
		}
		if content := `{"global":` + string(body.Global) + `,"device":{}}`; content != string(stored.Content) {
			t.Errorf("answered\n%s\nstored\n%s", content, stored.Content)
		}
	})
}
