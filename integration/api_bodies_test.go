package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// bodyEndpoints are the endpoints that read a body, each with one that it
// accepts.
var bodyEndpoints = []struct{ request, body string }{
	{"PUT /pushrules/global/override/mine", `{"rule":{"actions":[]}}`},
	{"PUT /pushrules/global/override/mine/actions", `{"actions":[]}`},
	{"PUT /pushrules/global/override/mine/enabled", `{"enabled":true}`},
	{"POST /pushers/set", pusherWith()},
}

// bodyOwner returns a user for whom all of [bodyEndpoints] succeed.
func (s *service) bodyOwner(t *testing.T, prefix string) *caller {
	t.Helper()
	c := s.owner(t, prefix)
	for _, endpoint := range bodyEndpoints {
		c.take(step{endpoint.request, endpoint.body, done})
	}
	return c
}

// refuse wants a request to be refused with a status, a code and a text that
// begins as given, and to change nothing.
func (c *caller) refuse(request, body string, status int, errcode, text string) {
	c.t.Helper()
	before := c.stored()
	got := c.send(request, body)
	want := strings.TrimSuffix(failure(status, errcode, text), `"}`)
	if !strings.HasPrefix(got.String(), want) {
		c.t.Errorf("%s %.200q\n got %s\nwant %s", request, body, got, want)
	}
	if after := c.stored(); after != before {
		c.t.Errorf("%s was refused and changed what is stored\nfrom %s\n  to %s", request, before, after)
	}
}

func TestBodiesThatAreNotJSON(t *testing.T) {
	t.Parallel()
	s := newService(t)
	nested := func(depth int) string {
		return strings.Repeat("[", depth) + strings.Repeat("]", depth)
	}
	for _, test := range []struct {
		name  string
		spoil func(body string) string
	}{
		{"empty", func(string) string { return "" }},
		{"white space", func(string) string { return " \n" }},
		{"words", func(string) string { return "not JSON" }},
		{"form", func(string) string { return "enabled=true" }},
		{"cut off", func(body string) string { return body[:len(body)-1] }},
		{"single quotes", func(body string) string { return strings.ReplaceAll(body, `"`, `'`) }},
		{"trailing comma", func(body string) string { return strings.TrimSuffix(body, "}") + ",}" }},
		{"comment", func(body string) string { return "/**/" + body }},
		{"byte order mark", func(body string) string { return "\xEF\xBB\xBF" + body }},
		{"second value", func(body string) string { return body + " {}" }},
		{"trailing words", func(body string) string { return body + "x" }},
		{"trailing NUL", func(body string) string { return body + "\x00" }},
		{"control character in a string", with("\"x\":\"\x01\"")},
		{"invalid UTF-8 in a string", with("\"x\":\"\xFF\"")},
		{"invalid UTF-8 in a name", with("\"\xC3\x28\":1")},
		{"surrogate in UTF-8", with("\"x\":\"\xED\xA0\x80\"")},
		{"lone surrogate", with(`"x":"\ud800"`)},
		{"lone low surrogate", with(`"x":"\udc00 "`)},
		{"surrogates in the wrong order", with(`"x":"\udc00\ud800"`)},
		{"lone surrogate in a name", with(`"\ud800":1`)},
		{"bad escape", with(`"x":"\x"`)},
		{"bad number", with(`"x":01`)},
		{"not a number", with(`"x":NaN`)},
		{"nested 65 deep", with(`"x":` + nested(64))},
		{"nested 10,000 deep", with(`"x":` + nested(10_000))},
		{"opened 60,000 times", func(string) string { return strings.Repeat("[", 60_000) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.bodyOwner(t, prefix)
				for _, endpoint := range bodyEndpoints {
					c.refuse(endpoint.request, test.spoil(endpoint.body), 400, "M_NOT_JSON", "Not valid JSON: ")
				}
			})
		})
	}

	// It is no JSON, whatever is found first: a wrong shape or a missing member.
	t.Run("whatever is found before", func(t *testing.T) {
		onBothPrefixes(t, func(t *testing.T, prefix string) {
			c := s.bodyOwner(t, prefix)
			for _, endpoint := range bodyEndpoints {
				for _, body := range []string{
					"nope", "true false", "[1", `"x`, "5 5", "null{}",
					`{"rule":nope,"actions":nope,"enabled":nope,"kind":nope}`,
					`{"rule":1,"actions":1,"enabled":1,"kind":1`,
					`{"rule":1,"actions":1,"enabled":1,"kind":1} x`,
					`{} x`,
				} {
					c.refuse(endpoint.request, body, 400, "M_NOT_JSON", "Not valid JSON: ")
				}
			}
		})
	})
	t.Run("nested 64 deep is taken", func(t *testing.T) {
		onBothPrefixes(t, func(t *testing.T, prefix string) {
			c := s.bodyOwner(t, prefix)
			for _, endpoint := range bodyEndpoints {
				c.take(step{endpoint.request, with(`"x":` + nested(63))(endpoint.body), done})
			}
		})
	})
	t.Run("brackets in strings do not nest", func(t *testing.T) {
		onBothPrefixes(t, func(t *testing.T, prefix string) {
			c := s.bodyOwner(t, prefix)
			for _, endpoint := range bodyEndpoints {
				c.take(step{endpoint.request, with(`"x":"\"` + strings.Repeat("[", 100) + `"`)(endpoint.body), done})
			}
		})
	})
}

// with adds a member to an object.
func with(member string) func(body string) string {
	return func(body string) string { return strings.TrimSuffix(body, "}") + "," + member + "}" }
}

func TestBodiesOfTheWrongShape(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const (
		rule    = "PUT /pushrules/global/override/mine"
		content = "PUT /pushrules/global/content/mine"
		room    = "PUT /pushrules/global/room/mine"
		actions = rule + "/actions"
		enabled = rule + "/enabled"
		pushers = "POST /pushers/set"
	)
	for _, test := range []struct{ name, request, body, text string }{
		{"rule: array", rule, `[]`, "Must be an object"},
		{"rule: null", rule, `null`, "Must be an object"},
		{"rule: string", rule, `"x"`, "Must be an object"},
		{"rule null", rule, `{"rule":null}`, "rule must be an object"},
		{"rule array", rule, `{"rule":[]}`, "rule must be an object"},
		{"before number", rule, `{"rule":{"actions":[]},"before":5}`, "before must be a string"},
		{"after object", rule, `{"rule":{"actions":[]},"after":{}}`, "after must be a string"},
		{"rule.actions null", rule, `{"rule":{"actions":null}}`, "rule.actions must be an array"},
		{"rule.actions string", rule, `{"rule":{"actions":"notify"}}`, "rule.actions must be an array"},
		{"rule.actions object", rule, `{"rule":{"actions":{}}}`, "rule.actions must be an array"},
		{"rule.actions of numbers", rule, `{"rule":{"actions":["notify",1]}}`, "rule.actions[1] must be a string or an object"},
		{"rule.actions of null", rule, `{"rule":{"actions":[null]}}`, "rule.actions[0] must be a string or an object"},
		{"rule.actions of arrays", rule, `{"rule":{"actions":[[]]}}`, "rule.actions[0] must be a string or an object"},
		{"set_tweak number", rule, `{"rule":{"actions":[{"set_tweak":1}]}}`, "rule.actions[0].set_tweak must be a string"},
		{"rule.conditions object", rule, `{"rule":{"actions":[],"conditions":{}}}`, "rule.conditions must be an array"},
		{"rule.conditions of strings", rule, `{"rule":{"actions":[],"conditions":["x"]}}`, "rule.conditions[0] must be an object"},
		{"condition kind number", rule, `{"rule":{"actions":[],"conditions":[{"kind":1}]}}`, "rule.conditions[0].kind must be a string"},
		{"rule.enabled string", rule, `{"rule":{"actions":[],"enabled":"true"}}`, "rule.enabled must be a boolean"},
		{"property value of another type", rule, `{"actions":[],"conditions":[{"kind":"event_property_is","key":"a","value":[]}]}`,
			"conditions[0].value must be a string, an integer, a boolean or null"},
		{"enabled at the top string", rule, `{"actions":[],"enabled":"true"}`, "enabled must be a boolean"},
		{"enabled at the top number", room, `{"actions":[],"enabled":0}`, "enabled must be a boolean"},
		{"enabled beside rule", rule, `{"rule":{"actions":[]},"enabled":[]}`, "enabled must be a boolean"},
		{"rule.enabled number", rule, `{"rule":{"actions":[],"enabled":1}}`, "rule.enabled must be a boolean"},
		{"rule.pattern number", content, `{"rule":{"actions":[],"pattern":5}}`, "rule.pattern must be a string"},
		{"rule.pattern empty", content, `{"rule":{"actions":[],"pattern":""}}`, "rule.pattern must be a non-empty string"},
		{"actions at the top null", room, `{"actions":null}`, "actions must be an array"},
		{"actions at the top of numbers", room, `{"actions":[1]}`, "actions[0] must be a string or an object"},
		{"conditions at the top object", rule, `{"actions":[],"conditions":{}}`, "conditions must be an array"},
		{"pattern at the top empty", content, `{"actions":[],"pattern":""}`, "pattern must be a non-empty string"},
		{"rule given twice", rule, `{"rule":{"actions":[]},"rule":{"actions":[]}}`, "Key given twice: rule"},
		{"actions given twice", rule, `{"rule":{"actions":[],"actions":[]}}`, "Key given twice: rule.actions"},
		{"actions given twice, once escaped", rule, `{"rule":{"actions":[],"\u0061ctions":[]}}`, "Key given twice: rule.actions"},
		{"key of an action given twice", rule, `{"rule":{"actions":[{"x":1,"x":2}]}}`, "Key given twice: rule.actions[0].x"},
		{"key of a skipped member given twice", rule, `{"rule":{"actions":[]},"x":{"x":1,"x":2}}`, "Key given twice: x.x"},

		{"actions: array", actions, `[]`, "Must be an object"},
		{"actions null", actions, `{"actions":null}`, "actions must be an array"},
		{"actions boolean", actions, `{"actions":true}`, "actions must be an array"},
		{"actions of booleans", actions, `{"actions":[true]}`, "actions[0] must be a string or an object"},
		{"actions: set_tweak null", actions, `{"actions":["x",{"set_tweak":null}]}`, "actions[1].set_tweak must be a string"},
		{"actions twice", actions, `{"actions":[],"actions":["notify"]}`, "Key given twice: actions"},

		{"enabled: boolean", enabled, `true`, "Must be an object"},
		{"enabled string", enabled, `{"enabled":"false"}`, "enabled must be a boolean"},
		{"enabled null", enabled, `{"enabled":null}`, "enabled must be a boolean"},
		{"enabled number", enabled, `{"enabled":0}`, "enabled must be a boolean"},
		{"enabled twice", enabled, `{"enabled":true,"enabled":false}`, "Key given twice: enabled"},

		{"pusher: array", pushers, `[]`, "Must be an object"},
		{"action null", pushers, `{"action":null}`, "action must be an object"},
		{"action string", pushers, `{"action":"set"}`, "action must be an object"},
		{"kind number", pushers, pusherWith(`"kind":1`), "kind must be a string or null"},
		{"kind false", pushers, pusherWith(`"kind":false`), "kind must be a string or null"},
		{"action.kind number", pushers, `{"action":` + pusherWith(`"kind":1`) + `}`, "action.kind must be a string or null"},
		{"app_id null", pushers, pusherWith(`"app_id":null`), "app_id must be a string"},
		{"pushkey number", pushers, pusherWith(`"pushkey":1`), "pushkey must be a string"},
		{"app_display_name array", pushers, pusherWith(`"app_display_name":[]`), "app_display_name must be a string"},
		{"device_display_name null", pushers, pusherWith(`"device_display_name":null`), "device_display_name must be a string"},
		{"lang object", pushers, pusherWith(`"lang":{}`), "lang must be a string"},
		{"profile_tag number", pushers, pusherWith(`"profile_tag":1`), "profile_tag must be a string or null"},
		{"data null", pushers, pusherWith(`"data":null`), "data must be an object"},
		{"data string", pushers, pusherWith(`"data":"https://x"`), "data must be an object"},
		{"data.url number", pushers, pusherWith(`"data":{"url":1}`), "data.url must be a string"},
		{"kind given twice", pushers, with(`"kind":null`)(pusherWith()), "Key given twice: kind"},
		{"key of data given twice", pushers, pusherWith(`"data":{"url":"x","url":"y"}`), "Key given twice: data.url"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.bodyOwner(t, prefix)
				c.take(step{test.request, test.body, failure(400, "M_BAD_JSON", test.text)})
			})
		})
	}
}

func TestMissingParameters(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct {
		name, request, body string
		text                map[string]string
	}{
		{"rule", "PUT /pushrules/global/override/mine", `{}`,
			map[string]string{r0: "Missing parameter: rule", v3: "Missing parameter: actions"}},
		{"rule, a place given", "PUT /pushrules/global/override/mine", `{"before":"a"}`,
			map[string]string{r0: "Missing parameter: rule", v3: "Missing parameter: actions"}},
		{"rule, enabled given", "PUT /pushrules/global/override/mine", `{"enabled":true}`,
			map[string]string{r0: "Missing parameter: rule", v3: "Missing parameter: actions"}},
		{"rule.actions", "PUT /pushrules/global/override/mine", `{"rule":{}}`, same("Missing parameter: rule.actions")},
		{"rule.actions of content", "PUT /pushrules/global/content/mine", `{"rule":{"pattern":"p"}}`, same("Missing parameter: rule.actions")},
		{"rule.actions, other case", "PUT /pushrules/global/room/mine", `{"rule":{"Actions":[]}}`, same("Missing parameter: rule.actions")},
		{"actions at the top", "PUT /pushrules/global/override/mine", `{"conditions":[]}`, same("Missing parameter: actions")},
		{"rule.pattern", "PUT /pushrules/global/content/mine", `{"rule":{"actions":[]}}`, same("Missing parameter: rule.pattern")},
		{"rule.pattern null", "PUT /pushrules/global/content/mine", `{"rule":{"actions":[],"pattern":null}}`, same("Missing parameter: rule.pattern")},
		{"pattern at the top", "PUT /pushrules/global/content/mine", `{"actions":[]}`, same("Missing parameter: pattern")},
		{"pattern at the top does not count for rule", "PUT /pushrules/global/content/mine", `{"rule":{"actions":[]},"pattern":"p"}`,
			same("Missing parameter: rule.pattern")},
		{"actions", "PUT /pushrules/global/override/mine/actions", `{}`, same("Missing parameter: actions")},
		{"actions, other case", "PUT /pushrules/global/override/mine/actions", `{"ACTIONS":[]}`, same("Missing parameter: actions")},
		{"enabled", "PUT /pushrules/global/override/mine/enabled", `{}`, same("Missing parameter: enabled")},
		{"enabled, other case", "PUT /pushrules/global/override/mine/enabled", `{"Enabled":true}`, same("Missing parameter: enabled")},

		{"kind", "POST /pushers/set", pusherWithout("kind"), same("Missing parameter: kind")},
		{"app_id", "POST /pushers/set", pusherWithout("app_id"), same("Missing parameter: app_id")},
		{"pushkey", "POST /pushers/set", pusherWithout("pushkey"), same("Missing parameter: pushkey")},
		{"app_display_name", "POST /pushers/set", pusherWithout("app_display_name"), same("Missing parameter: app_display_name")},
		{"device_display_name", "POST /pushers/set", pusherWithout("device_display_name"), same("Missing parameter: device_display_name")},
		{"lang", "POST /pushers/set", pusherWithout("lang"), same("Missing parameter: lang")},
		{"data", "POST /pushers/set", pusherWithout("data"), same("Missing parameter: data")},
		{"two of a pusher", "POST /pushers/set", pusherWithout("lang", "data"), same("Missing parameters: lang, data")},
		{"data.url", "POST /pushers/set", pusherWith(`"data":{}`), same("Missing parameter: data.url")},
		{"action.data", "POST /pushers/set", `{"action":` + pusherWithout("data") + `}`, same("Missing parameter: action.data")},
		{"the key of a deletion", "POST /pushers/set", `{"kind":null}`, same("Missing parameters: app_id, pushkey")},
		{"the pushkey of a deletion", "POST /pushers/set", `{"kind":null,"app_id":"a"}`, same("Missing parameter: pushkey")},
		{"everything below action", "POST /pushers/set", `{"action":{}}`,
			same("Missing parameters: action.kind, action.app_id, action.pushkey")},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.bodyOwner(t, prefix)
				c.take(step{test.request, test.body, failure(400, "M_MISSING_PARAM", test.text[prefix])})
			})
		})
	}
}

// same is a text on both prefixes.
func same(text string) map[string]string { return map[string]string{r0: text, v3: text} }

// The error text repeats field names, so it must not grow with them.
func TestLongFieldNamesAreShortened(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.bodyOwner(t, prefix)
		name := strings.Repeat("é", 10_000)
		a := c.send("PUT /pushrules/global/override/mine/enabled", `{"`+name+`":1,"`+name+`":2}`)
		if a.status != 400 || len(a.body) > 300 || !strings.Contains(a.body, "M_BAD_JSON") {
			t.Errorf("got %d, %d bytes: %.300s", a.status, len(a.body), a.body)
		}
	})
}

func TestBodySize(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	s := newService(t)
	for _, test := range []struct {
		name string
		size int
		want string
	}{
		{"at the limit", limit, done},
		{"one byte over", limit + 1, bodyTooLarge},
		{"far over", 64 * limit, bodyTooLarge},
	} {
		for _, framing := range []struct {
			name string
			wrap func(io.Reader) io.Reader
		}{
			{"Content-Length", func(r io.Reader) io.Reader { return r }},
			{"chunked", func(r io.Reader) io.Reader { return io.MultiReader(r) }},
		} {
			t.Run(fmt.Sprintf("%s, %s", test.name, framing.name), func(t *testing.T) {
				onBothPrefixes(t, func(t *testing.T, prefix string) {
					c := s.bodyOwner(t, prefix)
					for _, endpoint := range bodyEndpoints {
						body := endpoint.body + strings.Repeat(" ", test.size-len(endpoint.body))
						before := c.stored()
						got := c.stream(endpoint.request, framing.wrap(strings.NewReader(body)))
						if got.String() != test.want {
							t.Errorf("%s: got %s, want %s", endpoint.request, got, test.want)
						}
						if after := c.stored(); test.want != done && after != before {
							t.Errorf("%s changed what is stored", endpoint.request)
						}
					}
				})
			})
		}
	}
}

// stream sends a request with a body; one whose length cannot be seen is sent
// in chunks.
func (c *caller) stream(request string, body io.Reader) answer {
	c.t.Helper()
	method, path, _ := strings.Cut(request, " ")
	req, err := http.NewRequestWithContext(context.Background(), method, c.on.host.url+c.prefix+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.user)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// A body that a request has no use for is not looked at.
func TestBodiesOfReadsAndDeletesAreIgnored(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.owner(t, prefix)
		c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
		c.takeAll(
			step{"GET /pushrules/global/room/a/enabled", "not JSON", `200 {"enabled":true}`},
			step{"DELETE /pushrules/global/room/a", `{"x":`, done},
			step{"GET /pushers", "[", `200 {"pushers":[]}`},
		)
	})
}
