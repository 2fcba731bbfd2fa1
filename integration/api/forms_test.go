package api

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

// The cases show all differences of the two prefixes except "append" of pushers, which [TestStoredPushers] has.
func TestWireForms(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		wholes := map[string]bool{"": true, "/": true, "/global": prefix == hosttest.R0, "/global/": prefix == hosttest.R0}
		for path, wrapped := range wholes {
			c := s.caller(t, prefix)
			first := c.send("GET /pushrules"+path, "")
			event, want := c.event(), "200 "+c.ruleset()
			if wrapped {
				want = `200 {"global":` + c.ruleset() + "}"
			}
			if first.String() != want {
				t.Errorf("the first read of %s answers %s\nbut stores %s", path, first, want)
			}
			c.take(step{"GET /pushrules" + path, "", want})
			if c.event() != event {
				t.Error("a second read changed the stored set")
			}
		}
		for path, rule := range map[string]string{
			"override/.m.rule.master": `{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]}`,
			"underride/.m.rule.call": `{"rule_id":".m.rule.call","default":true,"enabled":true,` +
				`"conditions":[{"kind":"event_match","key":"type","pattern":"m.call.invite"}],` +
				`"actions":["notify",{"set_tweak":"sound","value":"ring"}]}`,
		} {
			c := s.owner(t, prefix)
			c.take(step{"GET /pushrules/global/" + path, "", c.rule(rule)})
		}
		missing := hosttest.Failure(400, "M_MISSING_PARAM", "Missing parameter: "+map[string]string{hosttest.R0: "rule", hosttest.V3: "actions"}[prefix])
		for _, body := range []string{`{}`, `{"before":"a"}`, `{"enabled":true}`} {
			s.owner(t, prefix).take(step{"PUT /pushrules/global/override/mine", body, missing})
		}
	})
}

// Both prefixes take both forms of PUT rule: the document's, with the rule under "rule", and the specification's,
// with the rule at the top level and before and after in the query.
func TestRequestFormsOfPutRule(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const disabled = `{"rule_id":"a","default":false,"enabled":false,"actions":[]}`
	const enabled = `{"rule_id":"a","default":false,"enabled":true,"actions":[]}`
	for _, test := range []struct{ name, request, body, rule string }{
		{
			"document", "override/a", `{"rule":{"actions":["notify"],"conditions":[{"kind":"x"}]}}`,
			`{"rule_id":"a","default":false,"enabled":true,"conditions":[{"kind":"x"}],"actions":["notify"]}`,
		},
		{
			"specification", "override/a", `{"actions":["notify"],"conditions":[{"kind":"x"}]}`,
			`{"rule_id":"a","default":false,"enabled":true,"conditions":[{"kind":"x"}],"actions":["notify"]}`,
		},
		{
			"document, pattern", "content/a", `{"rule":{"pattern":"p","actions":[]}}`,
			`{"rule_id":"a","default":false,"enabled":true,"pattern":"p","actions":[]}`,
		},
		{
			"specification, pattern", "content/a", `{"pattern":"<b>&é\u2028\"😀","actions":[]}`,
			"{\"rule_id\":\"a\",\"default\":false,\"enabled\":true,\"pattern\":\"<b>&é\u2028\\\"😀\",\"actions\":[]}",
		},
		{"enabled counts within rule", "room/a", `{"rule":{"actions":[],"enabled":false}}`, disabled},
		{"enabled counts beside rule", "room/a", `{"rule":{"actions":[]},"enabled":false}`, disabled},
		{"enabled within rule wins", "room/a", `{"enabled":false,"rule":{"actions":[],"enabled":true}}`, enabled},
		{"enabled counts in the specification's form", "room/a", `{"actions":[],"enabled":false}`, disabled},
		{"enabled null is absent", "room/a", `{"rule":{"actions":[],"enabled":null},"enabled":null}`, enabled},
		{"rule_id and default are the server's, within rule", "room/a", `{"rule":{"actions":[],"rule_id":"b","default":true}}`, enabled},
		{"rule_id and default are the server's, at the top", "room/a", `{"actions":[],"rule_id":".b","default":true}`, enabled},
		{
			"rule wins over members at the top", "content/a",
			`{"actions":["coalesce"],"pattern":"top","rule":{"actions":["notify"],"pattern":"rule"}}`,
			`{"rule_id":"a","default":false,"enabled":true,"pattern":"rule","actions":["notify"]}`,
		},
		{"conditions and pattern where the kind has none", "room/a", `{"rule":{"actions":[],"conditions":[],"pattern":"p"}}`, enabled},
		{
			"unknown conditions and actions, keys, digits and characters are kept", "underride/a",
			`{"rule":{"conditions":[{"kind":"org.example.new","n":12345678901234567890.1200e+01,"deep":[{}, null]}],` +
				`"actions":["org.example.act",{"x":{"y":[]}},{"set_tweak":"sound","value":9007199254740993,"<b>&":"\u0000"},"dont_notify"]}}`,
			`{"rule_id":"a","default":false,"enabled":true,` +
				`"conditions":[{"kind":"org.example.new","n":12345678901234567890.1200e+01,"deep":[{}, null]}],` +
				`"actions":["org.example.act",{"x":{"y":[]}},{"set_tweak":"sound","value":9007199254740993,"<b>&":"\u0000"},"dont_notify"]}`,
		},
		{"white space around the body", "room/a", " \r\n\t{ \"rule\" : { \"actions\" : [ ] } } \n", enabled},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				c.takeAll(
					step{"PUT /pushrules/global/" + test.request, test.body, hosttest.Done},
					step{"GET /pushrules/global/" + test.request, "", c.rule(test.rule)},
				)
			})
		})
	}
}

// Package pushrule tests every position. This test covers before and after in the query and in the body.
func TestBeforeAndAfterInQueryAndBody(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, query, body, want string }{
		{"nowhere", "", `{"actions":[]}`, "new a b c"},
		{"after in the query", "?after=a", `{"actions":[]}`, "a new b c"},
		{"after in the query, the document's form", "?after=a", `{"rule":{"actions":[]}}`, "a new b c"},
		{"after in the body", "", `{"after":"a","rule":{"actions":[]}}`, "a new b c"},
		{"after in the body, the specification's form", "", `{"actions":[],"after":"a"}`, "a new b c"},
		{"before in the query", "?before=c", `{"actions":[]}`, "a b new c"},
		{"before in the body", "", `{"rule":{"actions":[]},"before":"c"}`, "a b new c"},
		{"the query wins", "?after=a", `{"rule":{"actions":[]},"after":"c"}`, "a new b c"},
		{"the query wins over a missing rule", "?before=b", `{"rule":{"actions":[]},"before":"none"}`, "a new b c"},
		{"one in each: directly above before", "?after=a", `{"rule":{"actions":[]},"before":"c"}`, "a b new c"},
		{"empty in the query", "?after=", `{"rule":{"actions":[]},"after":"b"}`, "a b new c"},
		{"empty in the body", "?after=b", `{"rule":{"actions":[]},"after":"","before":""}`, "a b new c"},
		{"null in the body", "", `{"rule":{"actions":[]},"after":null,"before":null}`, "new a b c"},
		{"within the rule they are not looked for", "", `{"rule":{"actions":[],"after":"b"}}`, "new a b c"},
		{"encoded, beside others", "?access_token=x&after=%61&x=%F0%9F%98%80", `{"actions":[]}`, "a new b c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := s.owner(t, hosttest.R0)
			for _, id := range []string{"c", "b", "a"} {
				c.change("PUT /pushrules/global/sender/" + id + ` {"actions":[]}`)
			}
			c.take(step{"PUT /pushrules/global/sender/new" + test.query, test.body, hosttest.Done})
			if got := c.ids("sender"); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	t.Run("every character that has a meaning in a query", func(t *testing.T) {
		c := s.owner(t, hosttest.R0)
		c.change(
			`PUT /pushrules/global/room/%23a+b%20c%26d%3D%25 {"actions":[]}`,
			`PUT /pushrules/global/room/x?after=%23a%2Bb+c%26d%3D%25 {"actions":[]}`,
			`PUT /pushrules/global/room/y {"rule":{"actions":[]},"before":"#a+b c&d=%"}`,
		)
		if got, want := c.ids("room"), "y #a+b c&d=% x"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestRuleLimits(t *testing.T) {
	t.Parallel()
	c := newService(t).owner(t, hosttest.R0)
	list := func(n int, element string) string { return "[" + strings.Repeat(element+",", n-1) + element + "]" }
	const path = "/pushrules/global/"
	conditions := func(n int) string { return `{"actions":[],"conditions":` + list(n, `{"kind":"x"}`) + `}` }
	actions := func(n int) string { return `{"actions":` + list(n, `"x"`) + `}` }
	pattern := func(n int) string { return `{"actions":[],"pattern":"` + strings.Repeat("é", n/2) + `"}` }
	tooMany := hosttest.Failure(400, "M_INVALID_PARAM", "A push rule has at most 100 actions.")
	c.takeAll(
		step{"PUT " + path + "room/" + strings.Repeat("i", 1024), `{"actions":[]}`, hosttest.Done},
		step{"PUT " + path + "room/" + strings.Repeat("i", 1025), `{"actions":[]}`, hosttest.Failure(413, "M_TOO_LARGE", "Rule ID longer than 1024 bytes.")},
		step{"PUT " + path + "content/a", pattern(1024), hosttest.Done},
		step{"PUT " + path + "content/a", pattern(1026), hosttest.Failure(413, "M_TOO_LARGE", "Pattern longer than 1024 bytes.")},
		step{"PUT " + path + "override/a", conditions(100), hosttest.Done},
		step{"PUT " + path + "override/a", conditions(101), hosttest.Failure(400, "M_INVALID_PARAM", "A push rule has at most 100 conditions.")},
		step{"PUT " + path + "override/a", actions(101), tooMany},
		step{"PUT " + path + "override/a/actions", actions(100), hosttest.Done},
		step{"PUT " + path + "override/a/actions", actions(101), tooMany},
	)
}
