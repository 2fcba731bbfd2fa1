package api

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

var bodyEndpoints = []struct{ request, body string }{
	{"PUT /pushrules/global/override/mine", `{"rule":{"actions":[]}}`},
	{"PUT /pushrules/global/override/mine/actions", `{"actions":[]}`},
	{"PUT /pushrules/global/override/mine/enabled", `{"enabled":true}`},
	{"POST /pushers/set", hosttest.PusherWith()},
}

func (s *apiService) bodyOwner(t *testing.T) *caller {
	t.Helper()
	c := s.owner(t, hosttest.R0)
	for _, endpoint := range bodyEndpoints {
		c.take(step{endpoint.request, endpoint.body, hosttest.Done})
	}
	return c
}

// Package strictjson, which reads all bodies, tests the other cases.
func TestBodiesThatAreNotJSON(t *testing.T) {
	t.Parallel()
	c := newService(t).bodyOwner(t)
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for _, spoil := range []func(body string) string{
		func(string) string { return "" },
		func(string) string { return "enabled=true" },
		func(body string) string { return body[:len(body)-1] },
		func(body string) string { return body + " {}" },
		func(body string) string { return "\xEF\xBB\xBF" + body },
		with("\"x\":\"\xFF\""),
		with(`"\ud800":1`),
		with(`"x":` + nested(64)),
		func(string) string { return strings.Repeat("[", 60_000) },
		// Invalid JSON wins over an earlier wrong shape or missing member.
		func(string) string { return `{"rule":1,"actions":1,"enabled":1,"kind":1} x` },
		func(string) string { return "null{}" },
	} {
		for _, endpoint := range bodyEndpoints {
			c.take(step{endpoint.request, spoil(endpoint.body), hosttest.Failure(400, "M_NOT_JSON", "Not valid JSON: …")})
		}
	}
	for _, endpoint := range bodyEndpoints {
		c.take(step{endpoint.request, with(`"x":` + nested(63))(endpoint.body), hosttest.Done})
		c.take(step{endpoint.request, with(`"x":"\"` + strings.Repeat("[", 100) + `"`)(endpoint.body), hosttest.Done}) // member does not nest
	}
}

func with(member string) func(body string) string {
	return func(body string) string { return strings.TrimSuffix(body, "}") + "," + member + "}" }
}

// Errors name the member. The packages pushrule and pusher test every shape.
func TestBodiesOfTheWrongShape(t *testing.T) {
	t.Parallel()
	c := newService(t).bodyOwner(t)
	const (
		rule    = "PUT /pushrules/global/override/mine"
		content = "PUT /pushrules/global/content/mine"
		actions = rule + "/actions"
		enabled = rule + "/enabled"
		pushers = "POST /pushers/set"
	)
	for _, endpoint := range bodyEndpoints {
		for _, body := range []string{`[]`, `null`, `"x"`, `true`} {
			c.take(step{endpoint.request, body, hosttest.Failure(400, "M_BAD_JSON", "Must be an object")})
		}
	}
	for _, test := range []struct{ request, body, text string }{
		{rule, `{"rule":null}`, "rule must be an object"},
		{rule, `{"rule":{"actions":[]},"before":5}`, "before must be a string"},
		{rule, `{"rule":{"actions":["notify",1]}}`, "rule.actions[1] must be a string or an object"},
		{rule, `{"rule":{"actions":[]},"enabled":[]}`, "enabled must be a boolean"},
		{rule, `{"actions":[],"enabled":"true"}`, "enabled must be a boolean"},
		{content, `{"actions":[],"pattern":""}`, "pattern must be a non-empty string"},
		{rule, `{"rule":{"actions":[]},"rule":{"actions":[]}}`, "Key given twice: rule"},
		{actions, `{"actions":null}`, "actions must be an array"},
		{actions, `{"actions":[],"actions":["notify"]}`, "Key given twice: actions"},
		{enabled, `{"enabled":"false"}`, "enabled must be a boolean"},
		{enabled, `{"enabled":true,"enabled":false}`, "Key given twice: enabled"},
		{pushers, `{"action":"set"}`, "action must be an object"},
		{pushers, hosttest.PusherWith(`"kind":1`), "kind must be a string or null"},
		{pushers, `{"action":` + hosttest.PusherWith(`"kind":1`) + `}`, "action.kind must be a string or null"},
		{pushers, with(`"kind":null`)(hosttest.PusherWith()), "Key given twice: kind"},
	} {
		c.take(step{test.request, test.body, hosttest.Failure(400, "M_BAD_JSON", test.text)})
	}
}

func TestMissingParameters(t *testing.T) {
	t.Parallel()
	c := newService(t).bodyOwner(t)
	const rule, content = "PUT /pushrules/global/override/mine", "PUT /pushrules/global/content/mine"
	for _, test := range []struct{ request, body, missing string }{
		{rule, `{"rule":{}}`, ": rule.actions"},
		{rule, `{"conditions":[]}`, ": actions"},
		{content, `{"rule":{"actions":[]},"pattern":"p"}`, ": rule.pattern"}, // a top-level member does not count
		{content, `{"actions":[]}`, ": pattern"},
		{rule + "/actions", `{"ACTIONS":[]}`, ": actions"},
		{rule + "/enabled", `{"Enabled":true}`, ": enabled"},
		{"POST /pushers/set", pusherWithout("kind"), ": kind"},
		{"POST /pushers/set", pusherWithout("lang", "data"), "s: lang, data"},
		{"POST /pushers/set", `{"action":` + pusherWithout("data") + `}`, ": action.data"},
	} {
		c.take(step{test.request, test.body, hosttest.Failure(400, "M_MISSING_PARAM", "Missing parameter"+test.missing)})
	}
}

func TestBodiesOfReadsAndDeletesAreIgnored(t *testing.T) {
	t.Parallel()
	c := newService(t).owner(t, hosttest.R0)
	c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
	c.takeAll(
		step{"GET /pushrules/global/room/a/enabled", "not JSON", `200 {"enabled":true}`},
		step{"DELETE /pushrules/global/room/a", `{"x":`, hosttest.Done},
		step{"GET /pushers", "[", listed()},
	)
}
