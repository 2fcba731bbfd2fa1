package integration

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// surface lists every shape of path below the two prefixes with its allowed methods, or none.
var surface = []struct{ path, allow string }{
	{"/pushrules", "GET, OPTIONS"},
	{"/pushrules/", "GET, OPTIONS"},
	{"/pushrules/global", "GET, OPTIONS"},
	{"/pushrules/global/", "GET, OPTIONS"},
	{"/pushrules/global/override/a", "DELETE, GET, PUT, OPTIONS"},
	{"/pushrules/global/bogus/a", "DELETE, GET, PUT, OPTIONS"},
	{"/pushrules/global/override/a%2Fb", "DELETE, GET, PUT, OPTIONS"},
	{"/pushrules/global/override/enabled", "DELETE, GET, PUT, OPTIONS"},
	{"/pushrules/global/override/a/enabled", "GET, PUT, OPTIONS"},
	{"/pushrules/global/override/a/actions", "GET, PUT, OPTIONS"},
	{"/pushrules/global/bogus/a/actions", "GET, PUT, OPTIONS"},
	{"/pushrules/device/override/a", "GET, OPTIONS"},
	{"/pushers", "GET, OPTIONS"},
	{"/pushers/set", "POST, OPTIONS"},

	{"/pushrules/device", ""},
	{"/pushrules/device/", ""},
	{"/pushrules/device/override", ""},
	{"/pushrules/device/override/", ""},
	{"/pushrules/device/override/a/", ""},
	{"/pushrules/device/override/a/enabled", ""},
	{"/pushrules/device/override/a/b/c", ""},
	{"/pushrules/global/override", ""},
	{"/pushrules/global/override/", ""},
	{"/pushrules/global/override/a/", ""},
	{"/pushrules/global/override/a/pattern", ""},
	{"/pushrules/global/override/a/Enabled", ""},
	{"/pushrules/global/override/a/enabled/", ""},
	{"/pushrules/global/override/a/enabled/b", ""},
	{"/pushrules/global/override//enabled", ""},
	{"/pushrules/global//a", ""},
	{"/pushrules//override/a", ""},
	{"/pushrules//", ""},
	{"/pushrules/:scope", ""},
	{"/pushrules/*", ""},
	{"/pushrules-old", ""},
	{"/pushers/", ""},
	{"/pushers/other", ""},
	{"/pushers/set/", ""},
	{"/pushers/set/a", ""},
}

func TestEveryMethodOnEveryPath(t *testing.T) {
	t.Parallel()
	s := newService(t)
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FOO"}
	for _, shape := range surface {
		t.Run(shape.path, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				for _, method := range methods {
					c := s.owner(t, prefix)
					served := slices.Contains(strings.Split(shape.allow, ", "), method)
					got := c.send(method+" "+shape.path, "")
					switch {
					case shape.allow == "":
						c.wantRefusal(method, got, unrecognized)
					case method == "OPTIONS":
						if got.String() != "204 " {
							t.Errorf("OPTIONS: got %s", got)
						}
					case !served:
						c.wantRefusal(method, got, methodNotAllowed)
					case got.status >= 500 || got.header.Get("Content-Type") != "application/json" || !isAnswer(got):
						t.Errorf("%s: got %s", method, got)
					}
					if allow := got.header.Get("Allow"); !served && allow != shape.allow || served && method != "OPTIONS" && allow != "" {
						t.Errorf("%s: Allow is %q, want %q", method, allow, shape.allow)
					}
				}
			})
		})
	}
}

func (c *caller) wantRefusal(method string, got answer, want string) {
	c.t.Helper()
	if method == "HEAD" {
		want = want[:len("404 ")]
	}
	if got.String() != want || got.header.Get("Content-Type") != "application/json" {
		c.t.Errorf("%s: got %s %q, want %s", method, got, got.header.Get("Content-Type"), want)
	}
}

// isAnswer reports whether an answer is a JSON object; an error has an errcode and an error.
func isAnswer(a answer) bool {
	var body map[string]any
	if json.Unmarshal([]byte(a.body), &body) != nil {
		return false
	}
	_, hasCode := body["errcode"].(string)
	_, hasText := body["error"].(string)
	return a.status == 200 || hasCode && hasText && len(body) == 2
}

func TestUnservedPathsNeedNoRequester(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		nobody := &caller{t: t, on: s, prefix: prefix}
		nobody.takeAll(
			step{"GET /pushrules/global/override", "", unrecognized},
			step{"POST /pushrules/", "", methodNotAllowed},
			step{"POST /pushers", "", methodNotAllowed},
		)
		a, err := s.host.try(context.Background(), "", "OPTIONS", prefix+"/pushers/set", "")
		if err != nil || a.status != 204 {
			t.Errorf("OPTIONS: got %s, %v", a, err)
		}
	})
}
