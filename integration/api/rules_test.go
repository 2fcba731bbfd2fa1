package api

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

// These tests use r0, the document's prefix. [TestWireForms] tests the differences of v3.

// Each test is a row of the document's table "States and transitions". The first state is the state after the
// setup.
func TestStatesAndTransitions(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const path, master, message = "/pushrules/global/room/a", overridePath + ".m.rule.master", "/pushrules/global/underride/.m.rule.message"
	const present = "PUT " + path + ` {"rule":{"actions":["notify"]}}`
	const switchedOff = "PUT " + path + ` {"rule":{"actions":[],"enabled":false}}`
	enabled, disabled := `200 {"enabled":true}`, `200 {"enabled":false}`
	for _, test := range []struct {
		name, setup string
		steps       []step
	}{
		{"absent, put", "", []step{
			{"GET " + path, "", hosttest.RuleMissing},
			{"PUT " + path, anyRule, hosttest.Done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"absent, put as disabled", "", []step{
			{"PUT " + path, `{"rule":{"actions":[],"enabled":false}}`, hosttest.Done},
			{"GET " + path + "/enabled", "", disabled},
		}},
		{"present, put", present, []step{
			{"PUT " + path, anyRule, hosttest.Done},
			{"GET " + path + "/actions", "", `200 {"actions":[]}`},
		}},
		{"present and disabled, put without enabled", switchedOff, []step{
			{"PUT " + path, anyRule, hosttest.Done},
			{"GET " + path + "/enabled", "", disabled},
		}},
		{"present and disabled, put as enabled", switchedOff, []step{
			{"PUT " + path, `{"rule":{"actions":[],"enabled":true}}`, hosttest.Done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present and disabled, delete and put", switchedOff, []step{
			{"DELETE " + path, "", hosttest.Done},
			{"PUT " + path, anyRule, hosttest.Done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present, put enabled", present, []step{
			{"PUT " + path + "/enabled", `{"enabled":false}`, hosttest.Done},
			{"GET " + path + "/enabled", "", disabled},
			{"PUT " + path + "/enabled", `{"enabled":true}`, hosttest.Done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present, put actions", present, []step{
			{"PUT " + path + "/actions", `{"actions":[{"set_tweak":"sound","value":"x"},"notify"]}`, hosttest.Done},
			{"GET " + path + "/actions", "", `200 {"actions":[{"set_tweak":"sound","value":"x"},"notify"]}`},
			{"PUT " + path + "/actions", `{"actions":[]}`, hosttest.Done},
			{"GET " + path + "/actions", "", `200 {"actions":[]}`},
		}},
		{"present, delete", present, []step{
			{"DELETE " + path, "", hosttest.Done},
			{"GET " + path, "", hosttest.RuleMissing},
			{"DELETE " + path, "", hosttest.RuleMissing},
		}},
		{"present and default, delete", "", []step{
			{"DELETE " + message, "", hosttest.DeleteDefault},
			{"GET " + message + "/enabled", "", enabled},
		}},
		{"present and default, put enabled", "", []step{
			{"PUT " + master + "/enabled", `{"enabled":true}`, hosttest.Done},
			{"GET " + master + "/enabled", "", enabled},
		}},
		{"present and default, put actions", "", []step{
			{"PUT " + message + "/actions", `{"actions":[]}`, hosttest.Done},
			{"GET " + message + "/actions", "", `200 {"actions":[]}`},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := s.owner(t, hosttest.R0)
			if test.setup != "" {
				c.change(test.setup)
			}
			c.takeAll(test.steps...)
		})
	}
}

const (
	overridePath = "/pushrules/global/override/"
	anyRule      = `{"rule":{"actions":[]}}`
)

// The cases are the rows of the document's table "Errors" and of its readings, at the endpoints in the row's
// steps. A user with the override rules a and b sends the requests.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tooDeep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	queryInvalid := hosttest.Failure(400, "M_INVALID_PARAM", "Invalid query string.")
	for _, row := range []struct {
		name  string
		steps []step
	}{
		{"the rule is missing", []step{
			{"GET " + overridePath + "mine", "", hosttest.RuleMissing},
			{"GET " + overridePath + "mine/actions", "", hosttest.RuleMissing},
			{"PUT " + overridePath + "mine/actions", `{"actions":[]}`, hosttest.RuleMissing},
			{"GET " + overridePath + "mine/enabled", "", hosttest.RuleMissing},
			{"PUT " + overridePath + "mine/enabled", `{"enabled":true}`, hosttest.RuleMissing},
			{"DELETE " + overridePath + "mine", "", hosttest.RuleMissing},
		}},
		{"the rule is of another kind", []step{
			{"PUT /pushrules/global/room/mine", anyRule, hosttest.Done},
			{"GET " + overridePath + "mine", "", hosttest.RuleMissing},
			{"PUT " + overridePath + "mine/actions", `{"actions":[]}`, hosttest.RuleMissing},
			{"PUT /pushrules/global/underride/mine/enabled", `{"enabled":true}`, hosttest.RuleMissing},
			{"DELETE /pushrules/global/underride/mine", "", hosttest.RuleMissing},
		}},
		{"the id starts with a dot", []step{
			{"PUT " + overridePath + ".mine", anyRule, hosttest.IDReserved},
			{"PUT " + overridePath + "%2Emine", anyRule, hosttest.IDReserved},
			{"PUT " + overridePath + ".m.rule.master", anyRule, hosttest.IDReserved},
			{"PUT " + overridePath + ".m.rule.roomnotif", anyRule, hosttest.IDReserved},
		}},
		{"the id has invalid characters", []step{
			{"PUT " + overridePath + "a%2Fb", anyRule, hosttest.IDInvalid},
			{"PUT " + overridePath + "a%5Cb", anyRule, hosttest.IDInvalid},
			{"PUT " + overridePath + "a%0Ab", anyRule, hosttest.IDInvalid},
		}},
		{"the id is judged before the query and the body", []step{
			{"PUT " + overridePath + ".mine", "not JSON", hosttest.IDReserved},
			{"PUT " + overridePath + ".mine", tooDeep, hosttest.IDReserved},
			{"PUT " + overridePath + "%FF?before=%zz", "", hosttest.IDInvalid},
		}},
		{"the before or after rule does not exist", []step{
			{"PUT " + overridePath + "mine?before=none", anyRule, hosttest.AnchorMissing},
			{"PUT " + overridePath + "mine?after=%FF", anyRule, hosttest.AnchorMissing},
			{"PUT /pushrules/global/room/mine?before=a", anyRule, hosttest.AnchorMissing},
			{"PUT " + overridePath + "mine?before=mine", anyRule, hosttest.AnchorMissing},
			{"PUT " + overridePath + "mine", `{"rule":{"actions":[]},"after":"none"}`, hosttest.AnchorMissing},
		}},
		{"before or after is a server-default rule", []step{
			{"PUT " + overridePath + "mine?before=.m.rule.master", anyRule, hosttest.AnchorDefault},
			{"PUT " + overridePath + "mine?after=.none", anyRule, hosttest.AnchorDefault},
			{"PUT " + overridePath + "a", `{"rule":{"actions":[]},"before":".m.rule.master"}`, hosttest.AnchorDefault},
		}},
		{"the before rule has a higher priority than the after rule", []step{
			{"PUT " + overridePath + "mine?before=a&after=b", anyRule, hosttest.AnchorOrder},
			{"PUT " + overridePath + "mine?before=a&after=a", anyRule, hosttest.AnchorOrder},
			{"PUT " + overridePath + "b", `{"rule":{"actions":[]},"before":"a","after":"b"}`, hosttest.AnchorOrder},
		}},
		{"the rule is server-default", []step{
			{"DELETE " + overridePath + ".m.rule.master", "", hosttest.DeleteDefault},
		}},
		{"the kind is unknown", []step{
			{"GET /pushrules/global/bogus/a", "", hosttest.KindUnknown},
			{"GET /pushrules/global/bogus/a/actions", "", hosttest.KindUnknown},
			{"GET /pushrules/global/bogus/a/enabled", "", hosttest.KindUnknown},
			{"PUT /pushrules/global/bogus/.a", tooDeep, hosttest.KindUnknown},
			{"PUT /pushrules/global/bogus/a/actions", tooDeep, hosttest.KindUnknown},
			{"PUT /pushrules/global/bogus/a/enabled", strings.Repeat(" ", 65<<10), hosttest.KindUnknown},
			{"DELETE /pushrules/global/bogus/a", "", hosttest.KindUnknown},
			{"GET /pushrules/global/Override/a", "", hosttest.KindUnknown},
		}},
		{"the scope is not global", []step{
			{"GET /pushrules/device/override/a", "", hosttest.ScopeUnknown},
			{"GET /pushrules/device/bogus/a", "", hosttest.ScopeUnknown},
			{"GET /pushrules/device/override/.m.rule.roomnotif", "", hosttest.ScopeUnknown},
			{"GET /pushrules/Global/override/a", "", hosttest.ScopeUnknown},
		}},
		{"the query cannot be read", []step{
			{"PUT " + overridePath + "mine?before=%zz", tooDeep, queryInvalid},
			{"PUT " + overridePath + "mine?before=a;after=b", anyRule, queryInvalid},
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := s.owner(t, hosttest.R0)
			c.change("PUT "+overridePath+"b "+anyRule, "PUT "+overridePath+"a "+anyRule)
			c.takeAll(row.steps...)
		})
	}
}

// The service checks the scope first, then the kind, then the missing event, then the rest of the request.
func TestErrorsOfAUserWithoutRules(t *testing.T) {
	t.Parallel()
	s := newService(t)
	c := s.caller(t, hosttest.R0)
	for _, endpoint := range ruleEndpoints[2:] {
		c.take(step{endpoint.request, endpoint.body, hosttest.EventMissing})
	}
	c.takeAll(
		step{"GET /pushers", "", listed()},
		step{"POST /pushers/set", hosttest.PusherWith(`"kind":null`), hosttest.Done},
		step{"GET /pushrules/device/override/a", "", hosttest.ScopeUnknown},
		step{"GET /pushrules/global/bogus/a", "", hosttest.KindUnknown},
		step{"PUT /pushrules/global/bogus/.a", anyRule, hosttest.KindUnknown},
		step{"PUT " + overridePath + ".a?before=.m.rule.master&after=none", "not JSON", hosttest.EventMissing},
		step{"DELETE /pushrules/global/bogus/a", "", hosttest.KindUnknown},
	)
	if keys := s.redis.Keys(); len(keys) != 0 {
		t.Errorf("stored: %v", keys)
	}
}

// Endpoints 3, 5 and 7 refuse a legacy id without reading the event. Endpoints 6, 8 and 9 treat it like any other
// id.
func TestLegacyIDs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range []string{".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"} {
		for _, kind := range []string{"override", "content", "room", "bogus"} {
			path := "/pushrules/global/" + kind + "/" + id
			t.Run(kind+"/"+id, func(t *testing.T) {
				reads := []step{
					{"GET " + path, "", hosttest.RuleMissing},
					{"GET " + path + "/actions", "", hosttest.RuleMissing},
					{"GET " + path + "/enabled", "", `200 {"enabled":false}`},
				}
				c, missing := s.owner(t, hosttest.R0), hosttest.RuleMissing
				if kind == "bogus" {
					missing = hosttest.KindUnknown
				}
				c.takeAll(reads...)
				c.takeAll(
					step{"PUT " + path + "/actions", `{"actions":[]}`, missing},
					step{"PUT " + path + "/enabled", `{"enabled":true}`, missing},
					step{"DELETE " + path, "", missing},
				)
				s.redis.SetError("ERR down")
				defer s.redis.SetError("")
				c.takeAll(reads...)
			})
		}
	}
}

// Reads hide a stored legacy rule; writes find it.
func TestAStoredLegacyRuleIsHiddenFromReads(t *testing.T) {
	t.Parallel()
	c := newService(t).caller(t, hosttest.R0)
	const path = overridePath + ".m.rule.roomnotif"
	c.plant(rules("override", `{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":["notify"]}`))
	c.takeAll(
		step{"GET " + path, "", hosttest.RuleMissing},
		step{"GET " + path + "/actions", "", hosttest.RuleMissing},
		step{"GET " + path + "/enabled", "", `200 {"enabled":false}`},
		step{"PUT " + path + "/actions", `{"actions":[]}`, hosttest.Done},
		step{"PUT " + path + "/enabled", `{"enabled":false}`, hosttest.Done},
		step{"DELETE " + path, "", hosttest.DeleteDefault},
	)
	want := `{"rule_id":".m.rule.roomnotif","default":true,"enabled":false,"conditions":[],"actions":[]}`
	if event := c.event(); !strings.Contains(event, want) {
		t.Errorf("stored is %s, want %s in it", event, want)
	}
}

func TestOtherUsersAreUntouched(t *testing.T) {
	t.Parallel()
	s := newService(t)
	other, c := s.owner(t, hosttest.R0), s.owner(t, hosttest.R0)
	for _, each := range []*caller{other, c} {
		each.change(`PUT /pushrules/global/room/a {"rule":{"actions":[]}}`, "POST /pushers/set "+hosttest.PusherWith())
	}
	before := other.stored()
	c.change(
		`PUT /pushrules/global/room/a/enabled {"enabled":false}`,
		`PUT /pushrules/global/room/a/actions {"actions":["notify"]}`,
		`DELETE /pushrules/global/room/a`,
		`POST /pushers/set {"kind":null,"app_id":"org.example.app","pushkey":"key"}`,
	)
	c.take(step{"GET /pushers", "", listed()})
	if after := other.stored(); after != before {
		t.Errorf("the other user's data changed\nfrom %s\n  to %s", before, after)
	}
}

func TestRequestsWithoutARequester(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		nobody := &caller{t: t, on: s, prefix: prefix}
		for _, endpoint := range ruleEndpoints {
			nobody.take(step{endpoint.request, endpoint.body, hosttest.TokenMissing})
		}
		nobody.takeAll(
			step{"GET /pushers", "", hosttest.TokenMissing},
			step{"POST /pushers/set", hosttest.PusherWith(), hosttest.TokenMissing},
			step{"GET /pushrules/device/bogus/.m.rule.roomnotif", "", hosttest.TokenMissing},
			step{"PUT /pushrules/global/room/a", "not JSON", hosttest.TokenMissing},
		)
	})
}

// A host that passes an invalid user id gets no data and no detail.
func TestInvalidUserID(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, user := range []string{"alice", "@alice", "@" + strings.Repeat("a", 255) + ":example.org"} {
		c := &caller{t: t, on: s, prefix: hosttest.R0, user: user}
		c.take(step{"GET /pushrules/", "", hosttest.Failure(500, "M_UNKNOWN", "Internal server error.")})
		c.take(step{"GET /pushers", "", hosttest.Failure(500, "M_UNKNOWN", "Internal server error.")})
		wantLogged(t, s, 2)
	}
	if keys := s.redis.Keys(); len(keys) != 0 {
		t.Errorf("stored: %v", keys)
	}
}
