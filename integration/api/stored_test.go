package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *hosttest.Update {
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

func loneAlice(t *testing.T, prefix string) *caller {
	return &caller{t: t, on: newService(t), prefix: prefix, user: hosttest.Alice}
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
			c := loneAlice(t, hosttest.R0)
			c.send("GET /pushrules/", "")
			for _, change := range test.changes {
				request, body, _ := strings.Cut(change, " {")
				c.send(request, "{"+body)
			}
			golden(t, test.file, c.event())
		})
	}
}

var claimed = regexp.MustCompile(`,"claim":\{"number":\d{16},"set_at":\d+\}`)

func TestStoredPushers(t *testing.T) {
	t.Parallel()
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := loneAlice(t, prefix)
		c.change(
			"POST /pushers/set "+hosttest.PusherWith(`"pushkey":"gone"`),
			"POST /pushers/set "+hosttest.PusherWith(`"pushkey":"<k>\"1"`, `"profile_tag":"x"`, `"org.example":1.0`),
			"POST /pushers/set "+hosttest.PusherWith(`"app_id":"other"`, `"data":{"url":"https://push.example.org/_matrix/push/v1/notify","n":1.50}`),
			"POST /pushers/set "+hosttest.PusherWith(`"pushkey":"gone"`, `"kind":null`),
		)
		lines := strings.Split(strings.TrimSpace(claimed.ReplaceAllString(c.stored(), "")), "\n")
		slices.Sort(lines)
		golden(t, "pushers.txt", strings.Join(lines, "\n"))
	})
}

// unreadable are stored values that are no push rules event, with the cause in the answer. Package pushrule tests
// the other unreadable sets.
var unreadable = []struct{ name, event, cause string }{
	{"empty", "", "Not valid JSON: …"},
	{"words", "some words", "Not valid JSON: …"},
	{"trailing data after no content", `{} x`, "Not valid JSON: …"},
	{"invalid UTF-8", "{\"content\":{\"global\":{\"x\":\"\xFF\"}}}", "Not valid JSON: …"},
	{"event null", `null`, "Must be an object"},
	{"content twice", `{"content":{"global":{}},"content":{"global":{}}}`, "Key given twice: content"},
	{"content empty", `{"type":"m.push_rules","content":{}}`, "Missing parameter: content.global"},
	{"content without global", `{"content":{"device":{}}}`, "Missing parameter: content.global"},
	{"global null", `{"content":{"global":null}}`, "content.global must be an object"},
	{"global array", `{"content":{"global":[]}}`, "content.global must be an object"},
	{"kind object", `{"content":{"global":{"override":{}}}}`, "content.global.override must be an array"},
	{"rule_id number", rules("room", `{"rule_id":1,"default":false,"enabled":true,"actions":[]}`), "content.global.room[0].rule_id must be a string"},
	{"enabled missing", rules("room", `{"rule_id":"a","default":false,"actions":[]}`), "Missing parameter: content.global.room[0].enabled"},
}

func rules(kind string, rules ...string) string {
	return `{"type":"m.push_rules","content":{"global":{"` + kind + `":[` + strings.Join(rules, ",") + `]}}}`
}

func TestUnreadableEvent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range unreadable {
		t.Run(test.name, func(t *testing.T) {
			c := s.caller(t, hosttest.R0)
			c.plant(test.event)
			for _, endpoint := range ruleEndpoints {
				c.take(step{endpoint.request, endpoint.body,
					hosttest.Failure(500, "M_UNKNOWN", "Invalid push rules account data event in database: "+test.cause)})
			}
			wantLogged(t, s, len(ruleEndpoints))
			c.take(step{"GET " + overridePath + ".m.rule.roomnotif/enabled", "", `200 {"enabled":false}`})
		})
	}
}

func wantLogged(t *testing.T, s *apiService, count int) {
	t.Helper()
	if logged := s.host.Logs.TakeAll(); len(logged) != count {
		t.Errorf("%d entries are logged, want %d: %v", len(logged), count, logged)
	}
}

func TestKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	s := newService(t)
	c := s.caller(t, hosttest.R0)
	if _, err := s.redis.Push(hosttest.EventKey(c.user), "x"); err != nil {
		t.Fatal(err)
	}
	if err := s.redis.Set(hosttest.PushersKey(c.user), "x"); err != nil {
		t.Fatal(err)
	}
	const cause = "the key holds another type of value"
	for _, endpoint := range ruleEndpoints {
		c.take(step{endpoint.request, endpoint.body,
			hosttest.Failure(500, "M_UNKNOWN", "Invalid push rules account data event in database: "+cause)})
	}
	for _, request := range []string{"GET /pushers", "POST /pushers/set"} {
		c.take(step{request, hosttest.PusherWith(), hosttest.Failure(500, "M_UNKNOWN", "Invalid pusher in database: "+cause)})
	}
	if list, err := s.redis.List(hosttest.EventKey(c.user)); err != nil || !slices.Equal(list, []string{"x"}) {
		t.Errorf("the event's key holds %v, %v", list, err)
	}
	if text, err := s.redis.Get(hosttest.PushersKey(c.user)); err != nil || text != "x" {
		t.Errorf("the pushers' key holds %v, %v", text, err)
	}
	wantLogged(t, s, len(ruleEndpoints)+2)
}

func TestUnreadablePushers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const field = `["org.example.app","key"]`
	for _, test := range []struct{ text, cause string }{
		{"words", "Not valid JSON: …"},
		{pusherWithout("lang"), "Missing parameters: created, device_id, claim, lang"},
		{hosttest.PusherWith(`"pushkey":"secret"`, `"created":1`, `"device_id":""`, `"claim":{"number":1,"removes":0,"set_at":1}`), "the field is not the pusher's key"},
	} {
		c := s.caller(t, hosttest.R0)
		s.redis.HSet(hosttest.PushersKey(c.user), field, test.text)
		for _, request := range []string{"GET /pushers", "POST /pushers/set"} {
			c.take(step{request, hosttest.PusherWith(), hosttest.Failure(500, "M_UNKNOWN", "Invalid pusher in database: "+test.cause)})
		}
		wantLogged(t, s, 2)
	}
}

// An event whose content is missing or not an object counts as a missing event.
func TestEventWithoutContent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ event, kept string }{
		{`{}`, ""},
		{`{"type":"m.push_rules","content":null}`, ""},
		{`{"type":"m.push_rules","content":"{}"}`, ""},
		{`{"type":"m.push_rules","content":[{}]}`, ""},
		{`{"type":"m.push_rules","Content":{"global":{}}}`, `,"Content":{"global":{}}`},
	} {
		t.Run(test.event, func(t *testing.T) {
			c := s.caller(t, hosttest.R0)
			c.plant(test.event)
			for _, endpoint := range ruleEndpoints[2:] {
				c.take(step{endpoint.request, endpoint.body, hosttest.EventMissing})
			}
			for _, request := range []string{"GET /pushrules/", "GET /pushrules/global/"} {
				c.plant(test.event)
				c.send(request, "")
				if want := strings.TrimSuffix(s.freshEvent(c), "}") + test.kept + "}"; c.event() != want {
					t.Errorf("%s stores %s\nwant %s", request, c.event(), want)
				}
			}
			c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
		})
	}
}

func (s *apiService) freshEvent(c *caller) string {
	c.t.Helper()
	fresh := s.owner(c.t, c.prefix)
	return strings.ReplaceAll(fresh.event(), fresh.user, c.user)
}

// A set without legacy rules is returned unchanged: spacing, order, unknown members and missing defaults included.
func TestSetWithoutLegacyRulesStaysUnchanged(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, global string }{
		{"no defaults", `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}`},
		{"spacing and order", "{ \"underride\" : [ ],\n\t\"override\": [ {\"actions\":[ \"notify\" ], \"enabled\" :true,\"default\":false,\"rule_id\":\"a\"} ] }"},
		{"unknown kinds and members", `{"org.example":[{"n":1.00}],"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[],"x":{"y":null}}],"n":1e400}`},
		{"escapes", `{"room":[{"rule_id":"\u0061\/","default":false,"enabled":true,"actions":["<\u003c"]}]}`},
		{"master is not first", `{"override":[{"rule_id":"a","default":false,"enabled":true,"actions":[]},` +
			`{"rule_id":".m.rule.master","default":true,"enabled":false,"actions":[]}]}`},
		{"legacy name in a pattern", `{"content":[{"rule_id":"a","default":false,"enabled":true,"actions":[],"pattern":".m.rule.roomnotif"}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := s.caller(t, hosttest.R0)
			event := ` {"content": {"global":` + test.global + `,"device":{}}, "x":[1]}` + "\n"
			c.plant(event)
			wrapped := `200 {"global":` + test.global + "}"
			c.takeAll(step{"GET /pushrules/", "", wrapped}, step{"GET /pushrules/global/", "", wrapped})
			if c.event() != event {
				t.Errorf("stored is %q, was %q", c.event(), event)
			}
		})
	}
}

func TestUnknownMembersSurviveWrites(t *testing.T) {
	t.Parallel()
	const event = `{"x":[1, 2.0],"content":{"device":{"n":1e400},"global":{"org.example":[{"a":1.00, "b":null}],` +
		`"room":[{"z":{"y":[]},"rule_id":"a","default":false,"enabled":true,"conditions":[{"kind":5}],"actions":[5,"coalesce",{"set_tweak":7}]}],` +
		`"override":[{"rule_id":"o","default":false,"enabled":true,"pattern":"p","actions":[],"conditions":[{"kind":5},"s"]}]}},"origin_server_ts":12345678901234567890}`
	const room = `"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[5,"coalesce",{"set_tweak":7}],"z":{"y":[]},"conditions":[{"kind":5}]}]`
	const want = `{"type":"m.push_rules","content":{"global":{` +
		`"override":[{"rule_id":"o","default":false,"enabled":%,"conditions":[{"kind":5},"s"],"actions":[],"pattern":"p"}],` +
		`"content":[],` + room + `,"sender":[],"underride":[],"org.example":[{"a":1.00, "b":null}]},` +
		`"device":{"n":1e400}},"x":[1, 2.0],"origin_server_ts":12345678901234567890}`
	stored := func(enabled string) string { return strings.Replace(want, "%", enabled, 1) }
	c := newService(t).caller(t, hosttest.R0)
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
}

// Account data and /sync show unknown members of the content, before and after a change and a repair.
func TestUnknownMembersOfTheContentAreShown(t *testing.T) {
	t.Parallel()
	var push module.HostService
	var syncs module.SyncService
	s := newService(t, fx.Populate(&push, &syncs))
	const set = `{"override":[],"content":[],"room":[%],"sender":[],"underride":[]}`
	const room = `{"rule_id":"a","default":false,"enabled":true,"actions":[]}`
	const rest = `,"device":{"n":1e400},"org.example":[1, 2.0]`
	c := s.caller(t, hosttest.V3)
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
	if err := json.Unmarshal([]byte(c.send("GET /pushrules/", "").Body), &repaired); err != nil {
		t.Fatal(err)
	}
	shown(`{"global":` + string(repaired.Global) + rest + `}`)
}

// Data of another version of the module is unreadable, though its content may be a good set, and stays as it is.
func TestAnEventOfAnotherVersion(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, revision := range []string{`"revision":{"form":2,"version":1}`, `"revision":{"form":"x"}`} {
		c := s.caller(t, hosttest.R0)
		c.plant(`{"type":"m.push_rules","content":{"global":{"override":[],"content":[],"room":[],"sender":[],"underride":[]}},` + revision + `}`)
		for _, endpoint := range ruleEndpoints {
			c.take(step{endpoint.request, endpoint.body, hosttest.Failure(500, "M_UNKNOWN",
				"Invalid push rules account data event in database: Another version of the server stored the data.")})
		}
		wantLogged(t, s, len(ruleEndpoints))
	}
}

// A read of the whole set removes a legacy rule of any kind.
func TestALegacyRuleOfAnotherKindIsRemoved(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, kind := range pushrule.Kinds() {
		for _, id := range []string{".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"} {
			c := s.caller(t, hosttest.R0)
			c.plant(rules(string(kind), `{"rule_id":"`+id+`","default":true,"enabled":true,"conditions":[],"pattern":"a","actions":["notify"]}`))
			c.take(step{"GET /pushrules/global/" + string(kind) + "/" + id, "", hosttest.RuleMissing})
			answer := c.send("GET /pushrules/", "")
			if strings.Contains(answer.Body, id) || c.event() != s.freshEvent(c) {
				t.Errorf("%s in %s: stored is %s", id, kind, c.event())
			}
		}
	}
}

// A read of the whole set removes all three legacy rules if it finds one, and merges the current defaults.
func TestLegacyRulesAreRemovedAndDefaultsMerged(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for id, kind := range map[string]string{
		".m.rule.contains_display_name": "override",
		".m.rule.roomnotif":             "override",
		".m.rule.contains_user_name":    "content",
	} {
		for _, request := range []string{"GET /pushrules/", "GET /pushrules/global/"} {
			c := s.caller(t, hosttest.R0)
			c.plant(rules(kind, `{"rule_id":"`+id+`","default":true,"enabled":true,"pattern":"alice","actions":["notify"]}`))
			answer := c.send(request, "")
			if want := s.freshEvent(c); c.event() != want {
				t.Errorf("stored is %s\nwant %s", c.event(), want)
			}
			c.take(step{request, "", answer.String()})
		}
	}
}

// Package pushrule tests the merge of every kind; this test covers the stored and answered result.
func TestMergeKeepsUserRules(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const mine = `{"rule_id":"mine","default":true,"enabled":false,"conditions":[],"actions":[1.0],"extra":true}`
	const extra = `,"org.example":[{"rule_id":".m.rule.roomnotif"}]},"device":{}},"x":1}`
	c := s.caller(t, hosttest.R0)
	c.plant(`{"content":{"global":{"override":[` + mine + `,` +
		`{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"conditions":[],"actions":["notify"]},` +
		`{"rule_id":".m.rule.old","default":true,"enabled":true,"conditions":[],"actions":["notify"]},` +
		`{"rule_id":".m.rule.master","default":true,"enabled":true,"conditions":[{"kind":"stale"}],"actions":["also mine"]}]` + extra)
	answer := c.send("GET /pushrules/", "")
	want := strings.TrimSuffix(strings.Replace(s.freshEvent(c),
		`{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]},`,
		`{"rule_id":".m.rule.master","default":true,"enabled":true,"conditions":[],"actions":["also mine"]},`+mine+`,`, 1), "}}}") + extra
	if c.event() != want {
		t.Errorf("stored is\n%s\nwant\n%s", c.event(), want)
	}
	answered, ended := strings.CutSuffix(answer.Body, "}")
	if !ended || !strings.HasPrefix(c.event(), `{"type":"m.push_rules","content":`+answered) {
		t.Errorf("answered\n%s\nstored\n%s", answer, c.event())
	}
}
