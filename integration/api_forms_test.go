package integration

import (
	"strings"
	"testing"
)

// Both prefixes take both request forms of PUT rule: the document's, where the
// rule stands under "rule", and the specification's, where it stands at the
// top and before and after are in the query.
func TestRequestFormsOfPutRule(t *testing.T) {
	t.Parallel()
	s := newService(t)
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
			"specification, pattern", "content/a", `{"pattern":"p","actions":[]}`,
			`{"rule_id":"a","default":false,"enabled":true,"pattern":"p","actions":[]}`,
		},
		{
			"enabled counts within rule", "room/a", `{"rule":{"actions":[],"enabled":false}}`,
			`{"rule_id":"a","default":false,"enabled":false,"actions":[]}`,
		},
		{
			"enabled counts beside rule", "room/a", `{"rule":{"actions":[]},"enabled":false}`,
			`{"rule_id":"a","default":false,"enabled":false,"actions":[]}`,
		},
		{
			"enabled within rule wins", "room/a", `{"enabled":false,"rule":{"actions":[],"enabled":true}}`,
			`{"rule_id":"a","default":false,"enabled":true,"actions":[]}`,
		},
		{
			"enabled counts in the specification's form", "room/a", `{"actions":[],"enabled":false}`,
			`{"rule_id":"a","default":false,"enabled":false,"actions":[]}`,
		},
		{
			"enabled null is absent", "room/a", `{"rule":{"actions":[],"enabled":null},"enabled":null}`,
			`{"rule_id":"a","default":false,"enabled":true,"actions":[]}`,
		},
		{
			"rule_id and default are the server's, within rule", "room/a",
			`{"rule":{"actions":[],"rule_id":"b","default":true}}`,
			`{"rule_id":"a","default":false,"enabled":true,"actions":[]}`,
		},
		{
			"rule_id and default are the server's, at the top", "room/a", `{"actions":[],"rule_id":".b","default":true}`,
			`{"rule_id":"a","default":false,"enabled":true,"actions":[]}`,
		},
		{
			"rule wins over members at the top", "content/a",
			`{"actions":["coalesce"],"pattern":"top","rule":{"actions":["notify"],"pattern":"rule"}}`,
			`{"rule_id":"a","default":false,"enabled":true,"pattern":"rule","actions":["notify"]}`,
		},
		{
			"conditions and pattern where the kind has none", "room/a", `{"rule":{"actions":[],"conditions":[],"pattern":"p"}}`,
			`{"rule_id":"a","default":false,"enabled":true,"actions":[]}`,
		},
		{
			"conditions null", "underride/a", `{"rule":{"actions":[],"conditions":null,"pattern":null}}`,
			`{"rule_id":"a","default":false,"enabled":true,"conditions":[],"actions":[]}`,
		},
		{
			"unknown conditions and actions, keys, digits and characters are kept", "override/a",
			`{"rule":{"conditions":[{"kind":"org.example.new","n":12345678901234567890.1200e+01,"deep":[{}, null]}],` +
				`"actions":["org.example.act",{"x":{"y":[]}},{"set_tweak":"sound","value":9007199254740993,"<b>&":"\u0000"},"dont_notify"]}}`,
			`{"rule_id":"a","default":false,"enabled":true,` +
				`"conditions":[{"kind":"org.example.new","n":12345678901234567890.1200e+01,"deep":[{}, null]}],` +
				`"actions":["org.example.act",{"x":{"y":[]}},{"set_tweak":"sound","value":9007199254740993,"<b>&":"\u0000"},"dont_notify"]}`,
		},
		{
			"known tweaks without a value are kept", "override/a", `{"actions":[{"set_tweak":"sound"},{}]}`,
			`{"rule_id":"a","default":false,"enabled":true,"conditions":[],"actions":[{"set_tweak":"sound"},{}]}`,
		},
		{
			"characters of a pattern", "content/a", `{"pattern":"<b>&é\u2028\"😀","actions":[]}`,
			"{\"rule_id\":\"a\",\"default\":false,\"enabled\":true,\"pattern\":\"<b>&é\u2028\\\"😀\",\"actions\":[]}",
		},
		{
			"white space around the body", "room/a", " \r\n\t{ \"rule\" : { \"actions\" : [ ] } } \n",
			`{"rule_id":"a","default":false,"enabled":true,"actions":[]}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				c.takeAll(
					step{"PUT /pushrules/global/" + test.request, test.body, done},
					step{"GET /pushrules/global/" + test.request, "", c.rule(test.rule)},
				)
			})
		})
	}
}

func TestReplaceKeepsEnabledUnlessRuleSaysOtherwise(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct {
		name, body string
		was, is    string
	}{
		{"document, silent", `{"rule":{"actions":[]}}`, "false", "false"},
		{"document, enabled", `{"rule":{"actions":[],"enabled":true}}`, "false", "true"},
		{"document, disabled", `{"rule":{"actions":[],"enabled":false}}`, "true", "false"},
		{"specification, silent", `{"actions":[]}`, "false", "false"},
		{"document, null", `{"rule":{"actions":[],"enabled":null}}`, "false", "false"},
		{"document, enabled beside rule", `{"rule":{"actions":[]},"enabled":true}`, "false", "true"},
		{"document, disabled beside rule", `{"rule":{"actions":[]},"enabled":false}`, "true", "false"},
		{"specification, enabled", `{"actions":[],"enabled":true}`, "false", "true"},
		{"specification, disabled", `{"actions":[],"enabled":false}`, "true", "false"},
		{"specification, null", `{"actions":[],"enabled":null}`, "false", "false"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				const path = "/pushrules/global/room/a"
				c.change("PUT "+path+` {"actions":[]}`, "PUT "+path+`/enabled {"enabled":`+test.was+`}`)
				c.takeAll(
					step{"PUT " + path, test.body, done},
					step{"GET " + path + "/enabled", "", `200 {"enabled":` + test.is + `}`},
				)
			})
		})
	}
}

func TestBeforeAndAfterInQueryAndBody(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, query, body, want string }{
		{"after in the query", "?after=a", `{"actions":[]}`, "a new b c"},
		{"after in the query, the document's form", "?after=a", `{"rule":{"actions":[]}}`, "a new b c"},
		{"after in the body", "", `{"rule":{"actions":[]},"after":"a"}`, "a new b c"},
		{"after in the body, the specification's form", "", `{"actions":[],"after":"a"}`, "a new b c"},
		{"after in the body before the rule", "", `{"after":"a","rule":{"actions":[]}}`, "a new b c"},
		{"before in the query", "?before=c", `{"actions":[]}`, "a b new c"},
		{"before in the body", "", `{"rule":{"actions":[]},"before":"c"}`, "a b new c"},
		{"the query wins", "?after=a", `{"rule":{"actions":[]},"after":"c"}`, "a new b c"},
		{"the query wins over a rule that does not exist", "?before=b", `{"rule":{"actions":[]},"before":"none"}`, "a new b c"},
		{"one in each", "?after=a", `{"rule":{"actions":[]},"before":"c"}`, "a b new c"},
		{"empty in the query", "?after=", `{"rule":{"actions":[]},"after":"b"}`, "a b new c"},
		{"empty in the body", "?after=b", `{"rule":{"actions":[]},"after":"","before":""}`, "a b new c"},
		{"null in the body", "", `{"rule":{"actions":[]},"after":null,"before":null}`, "new a b c"},
		{"within the rule they are not looked for", "", `{"rule":{"actions":[],"after":"b"}}`, "new a b c"},
		{"encoded in the query", "?after=%61", `{"actions":[]}`, "a new b c"},
		{"other parameters", "?access_token=x&after=a&x=%F0%9F%98%80", `{"actions":[]}`, "a new b c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				for _, id := range []string{"c", "b", "a"} {
					c.change("PUT /pushrules/global/sender/" + id + ` {"actions":[]}`)
				}
				c.take(step{"PUT /pushrules/global/sender/new" + test.query, test.body, done})
				if got := c.ids("sender"); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
			})
		})
	}
}

// Ids with every character that has a meaning in a query.
func TestBeforeWithSpecialCharacters(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.owner(t, prefix)
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
	s := newService(t)
	list := func(n int, element string) string { return "[" + strings.Repeat(element+",", n-1) + element + "]" }
	const path = "/pushrules/global/"
	for _, test := range []struct{ name, request, body, want string }{
		{"id of 1,024 bytes", "PUT " + path + "room/" + strings.Repeat("i", 1024), `{"actions":[]}`, done},
		{
			"id of 1,025 bytes", "PUT " + path + "room/" + strings.Repeat("i", 1025), `{"actions":[]}`,
			failure(413, "M_TOO_LARGE", "Rule ID longer than 1024 bytes."),
		},
		{"pattern of 1,024 bytes", "PUT " + path + "content/a", `{"actions":[],"pattern":"` + strings.Repeat("é", 512) + `"}`, done},
		{
			"pattern of 1,026 bytes", "PUT " + path + "content/a", `{"actions":[],"pattern":"` + strings.Repeat("é", 513) + `"}`,
			failure(413, "M_TOO_LARGE", "Pattern longer than 1024 bytes."),
		},
		{"100 conditions", "PUT " + path + "override/a", `{"actions":[],"conditions":` + list(100, `{"kind":"x"}`) + `}`, done},
		{
			"101 conditions", "PUT " + path + "override/a", `{"actions":[],"conditions":` + list(101, `{"kind":"x"}`) + `}`,
			failure(400, "M_INVALID_PARAM", "A push rule has at most 100 conditions."),
		},
		{"100 actions", "PUT " + path + "override/there/actions", `{"actions":` + list(100, `"x"`) + `}`, done},
		{
			"101 actions", "PUT " + path + "override/there/actions", `{"actions":` + list(101, `"x"`) + `}`,
			failure(400, "M_INVALID_PARAM", "A push rule has at most 100 actions."),
		},
		{
			"101 actions of a rule", "PUT " + path + "override/a", `{"actions":` + list(101, `"x"`) + `}`,
			failure(400, "M_INVALID_PARAM", "A push rule has at most 100 actions."),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				c.change("PUT " + path + `override/there {"actions":[]}`)
				c.take(step{test.request, test.body, test.want})
			})
		})
	}
}
