package integration

import (
	"strings"
	"testing"
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
			{"GET " + path, "", ruleMissing},
			{"PUT " + path, anyRule, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"absent, put as disabled", "", []step{
			{"PUT " + path, `{"rule":{"actions":[],"enabled":false}}`, done},
			{"GET " + path + "/enabled", "", disabled},
		}},
		{"present, put", present, []step{
			{"PUT " + path, anyRule, done},
			{"GET " + path + "/actions", "", `200 {"actions":[]}`},
		}},
		{"present and disabled, put without enabled", switchedOff, []step{
			{"PUT " + path, anyRule, done},
			{"GET " + path + "/enabled", "", disabled},
		}},
		{"present and disabled, put as enabled", switchedOff, []step{
			{"PUT " + path, `{"rule":{"actions":[],"enabled":true}}`, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present and disabled, delete and put", switchedOff, []step{
			{"DELETE " + path, "", done},
			{"PUT " + path, anyRule, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present, put enabled", present, []step{
			{"PUT " + path + "/enabled", `{"enabled":false}`, done},
			{"GET " + path + "/enabled", "", disabled},
			{"PUT " + path + "/enabled", `{"enabled":true}`, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present, put actions", present, []step{
			{"PUT " + path + "/actions", `{"actions":[{"set_tweak":"sound","value":"x"},"notify"]}`, done},
			{"GET " + path + "/actions", "", `200 {"actions":[{"set_tweak":"sound","value":"x"},"notify"]}`},
			{"PUT " + path + "/actions", `{"actions":[]}`, done},
			{"GET " + path + "/actions", "", `200 {"actions":[]}`},
		}},
		{"present, delete", present, []step{
			{"DELETE " + path, "", done},
			{"GET " + path, "", ruleMissing},
			{"DELETE " + path, "", ruleMissing},
		}},
		{"present and default, delete", "", []step{
			{"DELETE " + message, "", deleteDefault},
			{"GET " + message + "/enabled", "", enabled},
		}},
		{"present and default, put enabled", "", []step{
			{"PUT " + master + "/enabled", `{"enabled":true}`, done},
			{"GET " + master + "/enabled", "", enabled},
		}},
		{"present and default, put actions", "", []step{
			{"PUT " + message + "/actions", `{"actions":[]}`, done},
			{"GET " + message + "/actions", "", `200 {"actions":[]}`},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := s.owner(t, r0)
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
	queryInvalid := failure(400, "M_INVALID_PARAM", "Invalid query string.")
	for _, row := range []struct {
		name  string
		steps []step
	}{
		{"the rule is missing", []step{
			{"GET " + overridePath + "mine", "", ruleMissing},
			{"GET " + overridePath + "mine/actions", "", ruleMissing},
			{"PUT " + overridePath + "mine/actions", `{"actions":[]}`, ruleMissing},
			{"GET " + overridePath + "mine/enabled", "", ruleMissing},
			{"PUT " + overridePath + "mine/enabled", `{"enabled":true}`, ruleMissing},
			{"DELETE " + overridePath + "mine", "", ruleMissing},
		}},
		{"the rule is of another kind", []step{
			{"PUT /pushrules/global/room/mine", anyRule, done},
			{"GET " + overridePath + "mine", "", ruleMissing},
			{"PUT " + overridePath + "mine/actions", `{"actions":[]}`, ruleMissing},
			{"PUT /pushrules/global/underride/mine/enabled", `{"enabled":true}`, ruleMissing},
			{"DELETE /pushrules/global/underride/mine", "", ruleMissing},
		}},
		{"the id starts with a dot", []step{
			{"PUT " + overridePath + ".mine", anyRule, idReserved},
			{"PUT " + overridePath + "%2Emine", anyRule, idReserved},
			{"PUT " + overridePath + ".m.rule.master", anyRule, idReserved},
			{"PUT " + overridePath + ".m.rule.roomnotif", anyRule, idReserved},
		}},
		{"the id has invalid characters", []step{
			{"PUT " + overridePath + "a%2Fb", anyRule, idInvalid},
			{"PUT " + overridePath + "a%5Cb", anyRule, idInvalid},
			{"PUT " + overridePath + "a%0Ab", anyRule, idInvalid},
		}},
		{"the id is judged before the query and the body", []step{
			{"PUT " + overridePath + ".mine", "not JSON", idReserved},
			{"PUT " + overridePath + ".mine", tooDeep, idReserved},
			{"PUT " + overridePath + "%FF?before=%zz", "", idInvalid},
		}},
		{"the before or after rule does not exist", []step{
			{"PUT " + overridePath + "mine?before=none", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?after=%FF", anyRule, anchorMissing},
			{"PUT /pushrules/global/room/mine?before=a", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?before=mine", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine", `{"rule":{"actions":[]},"after":"none"}`, anchorMissing},
		}},
		{"before or after is a server-default rule", []step{
			{"PUT " + overridePath + "mine?before=.m.rule.master", anyRule, anchorDefault},
			{"PUT " + overridePath + "mine?after=.none", anyRule, anchorDefault},
			{"PUT " + overridePath + "a", `{"rule":{"actions":[]},"before":".m.rule.master"}`, anchorDefault},
		}},
		{"the before rule has a higher priority than the after rule", []step{
			{"PUT " + overridePath + "mine?before=a&after=b", anyRule, anchorOrder},
			{"PUT " + overridePath + "mine?before=a&after=a", anyRule, anchorOrder},
			{"PUT " + overridePath + "b", `{"rule":{"actions":[]},"before":"a","after":"b"}`, anchorOrder},
		}},
		{"the rule is server-default", []step{
			{"DELETE " + overridePath + ".m.rule.master", "", deleteDefault},
		}},
		{"the kind is unknown", []step{
			{"GET /pushrules/global/bogus/a", "", kindUnknown},
			{"GET /pushrules/global/bogus/a/actions", "", kindUnknown},
			{"GET /pushrules/global/bogus/a/enabled", "", kindUnknown},
			{"PUT /pushrules/global/bogus/.a", tooDeep, kindUnknown},
			{"PUT /pushrules/global/bogus/a/actions", tooDeep, kindUnknown},
			{"PUT /pushrules/global/bogus/a/enabled", strings.Repeat(" ", 65<<10), kindUnknown},
			{"DELETE /pushrules/global/bogus/a", "", kindUnknown},
			{"GET /pushrules/global/Override/a", "", kindUnknown},
		}},
		{"the scope is not global", []step{
			{"GET /pushrules/device/override/a", "", scopeUnknown},
			{"GET /pushrules/device/bogus/a", "", scopeUnknown},
			{"GET /pushrules/device/override/.m.rule.roomnotif", "", scopeUnknown},
			{"GET /pushrules/Global/override/a", "", scopeUnknown},
		}},
		{"the query cannot be read", []step{
			{"PUT " + overridePath + "mine?before=%zz", tooDeep, queryInvalid},
			{"PUT " + overridePath + "mine?before=a;after=b", anyRule, queryInvalid},
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := s.owner(t, r0)
			c.change("PUT "+overridePath+"b "+anyRule, "PUT "+overridePath+"a "+anyRule)
			c.takeAll(row.steps...)
		})
	}
}

// The service checks the scope first, then the kind, then the missing event, then the rest of the request.
func TestErrorsOfAUserWithoutRules(t *testing.T) {
	t.Parallel()
	s := newService(t)
	c := s.caller(t, r0)
	for _, endpoint := range ruleEndpoints[2:] {
		c.take(step{endpoint.request, endpoint.body, eventMissing})
	}
	c.takeAll(
		step{"GET /pushers", "", listed()},
		step{"POST /pushers/set", pusherWith(`"kind":null`), done},
		step{"GET /pushrules/device/override/a", "", scopeUnknown},
		step{"GET /pushrules/global/bogus/a", "", kindUnknown},
		step{"PUT /pushrules/global/bogus/.a", anyRule, kindUnknown},
		step{"PUT " + overridePath + ".a?before=.m.rule.master&after=none", "not JSON", eventMissing},
		step{"DELETE /pushrules/global/bogus/a", "", kindUnknown},
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
					{"GET " + path, "", ruleMissing},
					{"GET " + path + "/actions", "", ruleMissing},
					{"GET " + path + "/enabled", "", `200 {"enabled":false}`},
				}
				c, missing := s.owner(t, r0), ruleMissing
				if kind == "bogus" {
					missing = kindUnknown
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
	c := newService(t).caller(t, r0)
	const path = overridePath + ".m.rule.roomnotif"
	c.plant(rules("override", `{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":["notify"]}`))
	c.takeAll(
		step{"GET " + path, "", ruleMissing},
		step{"GET " + path + "/actions", "", ruleMissing},
		step{"GET " + path + "/enabled", "", `200 {"enabled":false}`},
		step{"PUT " + path + "/actions", `{"actions":[]}`, done},
		step{"PUT " + path + "/enabled", `{"enabled":false}`, done},
		step{"DELETE " + path, "", deleteDefault},
	)
	want := `{"rule_id":".m.rule.roomnotif","default":true,"enabled":false,"conditions":[],"actions":[]}`
	if event := c.event(); !strings.Contains(event, want) {
		t.Errorf("stored is %s, want %s in it", event, want)
	}
}

func TestOtherUsersAreUntouched(t *testing.T) {
	t.Parallel()
	s := newService(t)
	other, c := s.owner(t, r0), s.owner(t, r0)
	for _, each := range []*caller{other, c} {
		each.change(`PUT /pushrules/global/room/a {"rule":{"actions":[]}}`, "POST /pushers/set "+pusherWith())
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
			nobody.take(step{endpoint.request, endpoint.body, tokenMissing})
		}
		nobody.takeAll(
			step{"GET /pushers", "", tokenMissing},
			step{"POST /pushers/set", pusherWith(), tokenMissing},
			step{"GET /pushrules/device/bogus/.m.rule.roomnotif", "", tokenMissing},
			step{"PUT /pushrules/global/room/a", "not JSON", tokenMissing},
		)
	})
}

// A host that passes an invalid user id gets no data and no detail.
func TestInvalidUserID(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, user := range []string{"alice", "@alice", "@" + strings.Repeat("a", 255) + ":example.org"} {
		c := &caller{t: t, on: s, prefix: r0, user: user}
		c.take(step{"GET /pushrules/", "", failure(500, "M_UNKNOWN", "Internal server error.")})
		c.take(step{"GET /pushers", "", failure(500, "M_UNKNOWN", "Internal server error.")})
		wantLogged(t, s, 2)
	}
	if keys := s.redis.Keys(); len(keys) != 0 {
		t.Errorf("stored: %v", keys)
	}
}
