package integration

import (
	"strings"
	"testing"
)

func TestWholeSetInBothWireForms(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct {
		path    string
		wrapped map[string]bool
	}{
		{"/pushrules/", map[string]bool{r0: true, v3: true}},
		{"/pushrules", map[string]bool{r0: true, v3: true}},
		{"/pushrules/global/", map[string]bool{r0: true, v3: false}},
		{"/pushrules/global", map[string]bool{r0: true, v3: false}},
	} {
		t.Run(test.path, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.caller(t, prefix)
				first := c.send("GET "+test.path, "")
				event := c.event()
				want := "200 " + c.ruleset()
				if test.wrapped[prefix] {
					want = `200 {"global":` + c.ruleset() + "}"
				}
				if first.String() != want {
					t.Errorf("the first read answers %s\nbut stores %s", first, want)
				}
				c.take(step{"GET " + test.path, "", want})
				if c.event() != event {
					t.Error("a second read changed the stored set")
				}
			})
		})
	}
}

func TestSingleRuleInBothWireForms(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, path, put, rule string }{
		{
			"default override rule", "override/.m.rule.master", "",
			`{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]}`,
		},
		{
			"default underride rule", "underride/.m.rule.call", "",
			`{"rule_id":".m.rule.call","default":true,"enabled":true,` +
				`"conditions":[{"kind":"event_match","key":"type","pattern":"m.call.invite"}],` +
				`"actions":["notify",{"set_tweak":"sound","value":"ring"}]}`,
		},
		{
			"override rule", "override/o", `{"rule":{"actions":["notify"],"conditions":[{"kind":"contains_display_name"}]}}`,
			`{"rule_id":"o","default":false,"enabled":true,"conditions":[{"kind":"contains_display_name"}],"actions":["notify"]}`,
		},
		{
			"underride rule without conditions", "underride/u", `{"rule":{"actions":[]}}`,
			`{"rule_id":"u","default":false,"enabled":true,"conditions":[],"actions":[]}`,
		},
		{
			"content rule", "content/c", `{"rule":{"actions":[{"set_tweak":"highlight"}],"pattern":"cake*"}}`,
			`{"rule_id":"c","default":false,"enabled":true,"pattern":"cake*","actions":[{"set_tweak":"highlight"}]}`,
		},
		{
			"room rule", "room/!r:example.org", `{"rule":{"actions":["dont_notify"]}}`,
			`{"rule_id":"!r:example.org","default":false,"enabled":true,"actions":["dont_notify"]}`,
		},
		{
			"room rule whose id is no room id", "room/r", `{"rule":{"actions":[]}}`,
			`{"rule_id":"r","default":false,"enabled":true,"actions":[]}`,
		},
		{
			"sender rule", "sender/@bob:example.org", `{"rule":{"actions":["coalesce"],"enabled":false}}`,
			`{"rule_id":"@bob:example.org","default":false,"enabled":false,"actions":["coalesce"]}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				path := "/pushrules/global/" + test.path
				if test.put != "" {
					c.take(step{"PUT " + path, test.put, done})
				}
				c.take(step{"GET " + path, "", c.rule(test.rule)})
			})
		})
	}
}

// Each test is a row of the document's table "States and transitions". The
// first state is that after the setup.
func TestStatesAndTransitions(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const path = "/pushrules/global/override/a"
	enabled, disabled := `200 {"enabled":true}`, `200 {"enabled":false}`
	for _, test := range []struct {
		name  string
		setup []string
		steps []step
	}{
		{"absent, put", nil, []step{
			{"GET " + path, "", ruleMissing},
			{"PUT " + path, `{"rule":{"actions":[]}}`, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"absent, put as disabled", nil, []step{
			{"PUT " + path, `{"rule":{"actions":[],"enabled":false}}`, done},
			{"GET " + path + "/enabled", "", disabled},
		}},
		{"present, put", []string{"PUT " + path + ` {"rule":{"actions":[]}}`}, []step{
			{"PUT " + path, `{"rule":{"actions":["notify"]}}`, done},
			{"GET " + path + "/actions", "", `200 {"actions":["notify"]}`},
		}},
		{"present and disabled, put without enabled", []string{"PUT " + path + ` {"rule":{"actions":[],"enabled":false}}`}, []step{
			{"PUT " + path, `{"rule":{"actions":["notify"]}}`, done},
			{"GET " + path + "/enabled", "", disabled},
		}},
		{"present and disabled, put as enabled", []string{"PUT " + path + ` {"rule":{"actions":[],"enabled":false}}`}, []step{
			{"PUT " + path, `{"rule":{"actions":[],"enabled":true}}`, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present and disabled, delete and put", []string{"PUT " + path + ` {"rule":{"actions":[],"enabled":false}}`}, []step{
			{"DELETE " + path, "", done},
			{"PUT " + path, `{"rule":{"actions":[]}}`, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present, put enabled", []string{"PUT " + path + ` {"rule":{"actions":[]}}`}, []step{
			{"PUT " + path + "/enabled", `{"enabled":false}`, done},
			{"GET " + path + "/enabled", "", disabled},
			{"PUT " + path + "/enabled", `{"enabled":false}`, done},
			{"GET " + path + "/enabled", "", disabled},
			{"PUT " + path + "/enabled", `{"enabled":true}`, done},
			{"GET " + path + "/enabled", "", enabled},
		}},
		{"present, put actions", []string{"PUT " + path + ` {"rule":{"actions":["notify"]}}`}, []step{
			{"PUT " + path + "/actions", `{"actions":[{"set_tweak":"sound","value":"x"},"notify"]}`, done},
			{"GET " + path + "/actions", "", `200 {"actions":[{"set_tweak":"sound","value":"x"},"notify"]}`},
			{"PUT " + path + "/actions", `{"actions":[]}`, done},
			{"GET " + path + "/actions", "", `200 {"actions":[]}`},
		}},
		{"present, delete", []string{"PUT " + path + ` {"rule":{"actions":[]}}`}, []step{
			{"DELETE " + path, "", done},
			{"GET " + path, "", ruleMissing},
			{"DELETE " + path, "", ruleMissing},
		}},
		{"present and default, delete", nil, []step{
			{"DELETE /pushrules/global/underride/.m.rule.message", "", deleteDefault},
			{"GET /pushrules/global/underride/.m.rule.message/enabled", "", enabled},
		}},
		{"present and default, put enabled", nil, []step{
			{"PUT /pushrules/global/override/.m.rule.master/enabled", `{"enabled":true}`, done},
			{"GET /pushrules/global/override/.m.rule.master/enabled", "", enabled},
		}},
		{"present and default, put actions", nil, []step{
			{"PUT /pushrules/global/underride/.m.rule.message/actions", `{"actions":[]}`, done},
			{"GET /pushrules/global/underride/.m.rule.message/actions", "", `200 {"actions":[]}`},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				c.change(test.setup...)
				c.takeAll(test.steps...)
			})
		})
	}
}

// nestedTooDeep is a body that is refused for its depth.
var nestedTooDeep = strings.Repeat("[", 65) + strings.Repeat("]", 65)

// errorRow is a row of the document's table "Errors"; the endpoints that the row
// names stand in the steps. A user with the rules a and b takes them.
type errorRow struct {
	name  string
	steps []step
}

const (
	overridePath = "/pushrules/global/override/"
	anyRule      = `{"rule":{"actions":[]}}`
)

func checkErrors(t *testing.T, rows []errorRow) {
	t.Parallel()
	s := newService(t)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				c.change("PUT "+overridePath+"b "+anyRule, "PUT "+overridePath+"a "+anyRule)
				c.takeAll(row.steps...)
			})
		})
	}
}

func TestErrorsOfAUserWithoutRules(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		for _, endpoint := range ruleEndpoints[2:] {
			s.caller(t, prefix).take(step{endpoint.request, endpoint.body, eventMissing})
		}
	})
}

func TestErrorsOfRulesThatAreNotThere(t *testing.T) {
	checkErrors(t, []errorRow{
		{"the rule is missing", []step{
			{"GET " + overridePath + "mine", "", ruleMissing},
			{"GET " + overridePath + "mine/actions", "", ruleMissing},
			{"PUT " + overridePath + "mine/actions", `{"actions":[]}`, ruleMissing},
			{"GET " + overridePath + "mine/enabled", "", ruleMissing},
			{"PUT " + overridePath + "mine/enabled", `{"enabled":true}`, ruleMissing},
			{"DELETE " + overridePath + "mine", "", ruleMissing},
		}},
		{"the rule is of another kind", []step{
			{"GET /pushrules/global/underride/a", "", ruleMissing},
			{"GET /pushrules/global/underride/a/actions", "", ruleMissing},
			{"PUT /pushrules/global/underride/a/actions", `{"actions":[]}`, ruleMissing},
			{"GET /pushrules/global/underride/a/enabled", "", ruleMissing},
			{"PUT /pushrules/global/underride/a/enabled", `{"enabled":true}`, ruleMissing},
			{"DELETE /pushrules/global/underride/a", "", ruleMissing},
			{"DELETE /pushrules/global/room/.m.rule.master", "", ruleMissing},
		}},
		{"an id that is not UTF-8 is no rule's", []step{
			{"PUT " + overridePath + "%EF%BF%BD", anyRule, done},
			{"PUT " + overridePath + "%FF", anyRule, idInvalid},
			{"GET " + overridePath + "%FF", "", ruleMissing},
			{"GET " + overridePath + "%FF/actions", "", ruleMissing},
			{"PUT " + overridePath + "%FF/actions", `{"actions":["notify"]}`, ruleMissing},
			{"GET " + overridePath + "%FF/enabled", "", ruleMissing},
			{"PUT " + overridePath + "%FF/enabled", `{"enabled":false}`, ruleMissing},
			{"DELETE " + overridePath + "%FF", "", ruleMissing},
			{"PUT " + overridePath + "mine?after=%FF", anyRule, anchorMissing},
			{"GET " + overridePath + "%EF%BF%BD/enabled", "", `200 {"enabled":true}`},
			{"GET " + overridePath + "%EF%BF%BD/actions", "", `200 {"actions":[]}`},
		}},
		{"the rule is server-default", []step{
			{"DELETE " + overridePath + ".m.rule.master", "", deleteDefault},
			{"DELETE /pushrules/global/underride/.m.rule.call", "", deleteDefault},
		}},
	})
}

func TestErrorsOfIDs(t *testing.T) {
	checkErrors(t, []errorRow{
		{"the id starts with a dot", []step{
			{"PUT " + overridePath + ".mine", anyRule, idReserved},
			{"PUT " + overridePath + ".m.rule.master", anyRule, idReserved},
			{"PUT " + overridePath + ".m.rule.roomnotif", anyRule, idReserved},
			{"PUT " + overridePath + "%2Emine", anyRule, idReserved},
			{"PUT /pushrules/global/content/.m.rule.contains_user_name", `{"rule":{"actions":[],"pattern":"x"}}`, idReserved},
		}},
		{"the id has invalid characters", []step{
			{"PUT " + overridePath + "a%2Fb", anyRule, idInvalid},
			{"PUT " + overridePath + "a%5Cb", anyRule, idInvalid},
			{"PUT " + overridePath + "a%00b", anyRule, idInvalid},
			{"PUT " + overridePath + "a%0Ab", anyRule, idInvalid},
			{"PUT " + overridePath + "a%1Fb", anyRule, idInvalid},
			{"PUT " + overridePath + "a%7Fb", anyRule, idInvalid},
			{"PUT " + overridePath + "a%C2%85b", anyRule, idInvalid},
			{"PUT " + overridePath + "a%FFb", anyRule, idInvalid},
			{"PUT " + overridePath + "a%ED%A0%80b", anyRule, idInvalid},
		}},
		{"the id is judged before the body", []step{
			{"PUT " + overridePath + ".mine", "not JSON", idReserved},
			{"PUT " + overridePath + ".mine", nestedTooDeep, idReserved},
			{"PUT " + overridePath + "a%2Fb", `{"actions":null}`, idInvalid},
			{"PUT " + overridePath + "%FF?before=%zz", "", idInvalid},
		}},
	})
}

func TestErrorsOfPositions(t *testing.T) {
	checkErrors(t, []errorRow{
		{"the before or after rule does not exist", []step{
			{"PUT " + overridePath + "mine?before=none", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?after=none", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?before=a&after=none", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?before=none&after=a", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?before=none&after=none", anyRule, anchorMissing},
			{"PUT " + overridePath + "a?before=none", anyRule, anchorMissing},
			{"PUT /pushrules/global/room/mine?before=a", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?before=A", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?before=%FF", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine", `{"rule":{"actions":[]},"before":"none"}`, anchorMissing},
			{"PUT " + overridePath + "mine", `{"rule":{"actions":[]},"after":"none"}`, anchorMissing},
		}},
		{"a new rule is placed relative to itself", []step{
			{"PUT " + overridePath + "mine?before=mine", anyRule, anchorMissing},
			{"PUT " + overridePath + "mine?after=mine", anyRule, anchorMissing},
		}},
		{"before or after is a server-default rule", []step{
			{"PUT " + overridePath + "mine?before=.m.rule.master", anyRule, anchorDefault},
			{"PUT " + overridePath + "mine?after=.m.rule.master", anyRule, anchorDefault},
			{"PUT " + overridePath + "mine?after=.m.rule.suppress_notices", anyRule, anchorDefault},
			{"PUT " + overridePath + "mine?after=.none", anyRule, anchorDefault},
			{"PUT " + overridePath + "a?before=.m.rule.master", anyRule, anchorDefault},
			{"PUT " + overridePath + "mine", `{"rule":{"actions":[]},"before":".m.rule.master"}`, anchorDefault},
		}},
		{"the before rule has a higher priority than the after rule", []step{
			{"PUT " + overridePath + "mine?before=a&after=b", anyRule, anchorOrder},
			{"PUT " + overridePath + "mine?before=a&after=a", anyRule, anchorOrder},
			{"PUT " + overridePath + "a?before=a&after=b", anyRule, anchorOrder},
			{"PUT " + overridePath + "b?before=a&after=b", anyRule, anchorOrder},
			{"PUT " + overridePath + "mine", `{"rule":{"actions":[]},"before":"a","after":"b"}`, anchorOrder},
		}},
	})
}

func TestErrorsOfPaths(t *testing.T) {
	checkErrors(t, []errorRow{
		{"the kind is unknown", []step{
			{"GET /pushrules/global/bogus/a", "", kindUnknown},
			{"GET /pushrules/global/bogus/a/actions", "", kindUnknown},
			{"GET /pushrules/global/bogus/a/enabled", "", kindUnknown},
			{"PUT /pushrules/global/bogus/a", anyRule, kindUnknown},
			{"PUT /pushrules/global/bogus/a/actions", `{"actions":[]}`, kindUnknown},
			{"PUT /pushrules/global/bogus/a/enabled", `{"enabled":true}`, kindUnknown},
			{"DELETE /pushrules/global/bogus/a", "", kindUnknown},
			{"GET /pushrules/global/Override/a", "", kindUnknown},
			{"GET /pushrules/global/overrides/a", "", kindUnknown},
			{"GET /pushrules/global/over%2Fride/a", "", kindUnknown},
			{"PUT /pushrules/global/bogus/a", nestedTooDeep, kindUnknown},
			{"PUT /pushrules/global/bogus/a/actions", nestedTooDeep, kindUnknown},
			{"PUT /pushrules/global/bogus/a/enabled", nestedTooDeep, kindUnknown},
			{"PUT /pushrules/global/bogus/a", strings.Repeat(" ", 65<<10), kindUnknown},
			{"PUT /pushrules/global/override/a?before=%zz", nestedTooDeep, failure(400, "M_INVALID_PARAM", "Invalid query string.")},
		}},
		{"the scope is not global", []step{
			{"GET /pushrules/device/override/a", "", scopeUnknown},
			{"GET /pushrules/device/bogus/a", "", scopeUnknown},
			{"GET /pushrules/device/override/.m.rule.roomnotif", "", scopeUnknown},
			{"GET /pushrules/Global/override/a", "", scopeUnknown},
			{"GET /pushrules/globals/override/a", "", scopeUnknown},
			{"GET /pushrules/g/override/a", "", scopeUnknown},
			{"GET /pushrules/global%2F/override/a", "", scopeUnknown},
		}},
		{"the query cannot be read", []step{
			{"PUT " + overridePath + "mine?before=%zz", anyRule, failure(400, "M_INVALID_PARAM", "Invalid query string.")},
			{"PUT " + overridePath + "mine?before=a;after=b", anyRule, failure(400, "M_INVALID_PARAM", "Invalid query string.")},
		}},
	})
}

// The scope comes before everything else, the kind before everything that is
// stored.
func TestPathIsCheckedBeforeTheStoredEvent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		c.takeAll(
			step{"GET /pushrules/device/override/a", "", scopeUnknown},
			step{"GET /pushrules/global/bogus/a", "", kindUnknown},
			step{"PUT /pushrules/global/bogus/.a", `{"rule":{"actions":[]}}`, kindUnknown},
			step{"PUT /pushrules/global/override/.a", "not JSON", eventMissing},
			step{"DELETE /pushrules/global/bogus/a", "", kindUnknown},
		)
	})
}

// putFaults are the faults that a PUT rule may have, the first that counts
// first. Those that need one and the same part of the request do not combine.
var putFaults = []struct {
	name, id, before, after, want string
}{
	{"event missing", "", "", "", eventMissing},
	{"id starts with a dot", ".", "", "", idReserved},
	{"id has a slash", "x%2Fy", "", "", idInvalid},
	{"before is default", "", ".m.rule.master", "", anchorDefault},
	{"after is default", "", "", ".m.rule.master", anchorDefault},
	{"after is missing", "", "", "none", anchorMissing},
	{"before is missing", "", "none", "", anchorMissing},
	{"before above after", "", "a", "b", anchorOrder},
}

func TestFailureOrderOfPutRule(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, first := range putFaults {
		for _, second := range putFaults[i+1:] {
			if first.before != "" && second.before != "" || first.after != "" && second.after != "" {
				continue
			}
			t.Run(first.name+" and "+second.name, func(t *testing.T) {
				onBothPrefixes(t, func(t *testing.T, prefix string) {
					c := s.caller(t, prefix)
					if first.want != eventMissing {
						c = s.owner(t, prefix)
						c.change(`PUT /pushrules/global/override/b {"rule":{"actions":[]}}`,
							`PUT /pushrules/global/override/a {"rule":{"actions":[]}}`)
					}
					id := first.id + second.id
					if id == "" {
						id = "mine"
					}
					query := "?before=" + first.before + second.before + "&after=" + first.after + second.after
					c.take(step{"PUT /pushrules/global/override/" + id + query, `{"rule":{"actions":[]}}`, first.want})
				})
			})
		}
	}
}

// legacyIDs are the rules that MSC4210 removed.
var legacyIDs = []string{".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"}

func TestLegacyIDs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range legacyIDs {
		for _, kind := range append([]string{"bogus"}, kinds...) {
			path := "/pushrules/global/" + kind + "/" + id
			// Endpoints 3, 5 and 7 look at the id alone.
			reads := []step{
				{"GET " + path, "", ruleMissing},
				{"GET " + path + "/actions", "", ruleMissing},
				{"GET " + path + "/enabled", "", `200 {"enabled":false}`},
			}
			t.Run(kind+"/"+id, func(t *testing.T) {
				onBothPrefixes(t, func(t *testing.T, prefix string) {
					s.caller(t, prefix).takeAll(reads...)
					s.owner(t, prefix).takeAll(reads...)

					// On 6, 8 and 9 it is an id like any other.
					missing := ruleMissing
					if kind == "bogus" {
						missing = kindUnknown
					}
					s.owner(t, prefix).takeAll(
						step{"PUT " + path + "/actions", `{"actions":[]}`, missing},
						step{"PUT " + path + "/enabled", `{"enabled":true}`, missing},
						step{"DELETE " + path, "", missing},
					)
				})
			})
		}
	}
}

// A set that still has a legacy rule serves it to no read, while writes find
// it there.
func TestLegacyRuleThatIsStillStored(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const path = "/pushrules/global/override/.m.rule.roomnotif"
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.caller(t, prefix)
		c.plant(`{"type":"m.push_rules","content":{"global":{"override":[` +
			`{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":["notify"]}]}}}`)
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
	})
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, put, want string }{
		{"new, nowhere", "new", "new a b c"},
		{"new, after the first", "new?after=a", "a new b c"},
		{"new, after the last", "new?after=c", "a b c new"},
		{"new, before the first", "new?before=a", "new a b c"},
		{"new, before the last", "new?before=c", "a b new c"},
		{"new, between neighbours", "new?after=a&before=b", "a new b c"},
		{"new, between others: directly above before", "new?after=a&before=c", "a b new c"},
		{"replaced, nowhere", "b", "a b c"},
		{"replaced, down after the next", "a?after=b", "b a c"},
		{"replaced, down after the last", "a?after=c", "b c a"},
		{"replaced, down before the last", "a?before=c", "b a c"},
		{"replaced, up before the first", "c?before=a", "c a b"},
		{"replaced, up after the first", "c?after=a", "a c b"},
		{"replaced, where it is", "b?after=a&before=c", "a b c"},
		{"replaced, before itself", "b?before=b", "a b c"},
		{"replaced, after itself", "b?after=b", "a b c"},
		{"replaced, after itself and before another", "a?after=a&before=c", "b a c"},
		{"empty names are absent", "new?before=&after=", "new a b c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				for _, kind := range kinds {
					c := s.owner(t, prefix)
					put := func(id string) string {
						return "PUT /pushrules/global/" + kind + "/" + id + ` {"rule":{"actions":[],"pattern":"p"}}`
					}
					c.change(put("c"), put("b"), put("a"), put(test.put))
					if got := c.ids(kind); got != test.want {
						t.Errorf("%s: got %s, want %s", kind, got, test.want)
					}
				}
			})
		})
	}
}

func TestNewOverrideRulesStandBelowMaster(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.owner(t, prefix)
		c.change(`PUT /pushrules/global/override/a {"rule":{"actions":[]}}`,
			`PUT /pushrules/global/override/b?before=a {"rule":{"actions":[]}}`)
		want := `{"override":[{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]},` +
			`{"rule_id":"b","default":false,"enabled":true,"conditions":[],"actions":[]},` +
			`{"rule_id":"a","default":false,"enabled":true,"conditions":[],"actions":[]},` +
			`{"rule_id":".m.rule.suppress_notices",`
		if got := c.ruleset(); !strings.HasPrefix(got, want) {
			t.Errorf("stored is %s\nwant it to begin with %s", got, want)
		}
	})
}

func TestOtherUsersAreUntouched(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		other, c := s.owner(t, prefix), s.owner(t, prefix)
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
		c.take(step{"GET /pushers", "", `200 {"pushers":[]}`})
		if after := other.stored(); after != before {
			t.Errorf("the other user's data changed\nfrom %s\n  to %s", before, after)
		}
	})
}

func TestRequestsWithoutARequester(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		nobody := &caller{t, s, prefix, ""}
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
