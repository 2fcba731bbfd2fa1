package api

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
)

type pathShape struct{ path, allow string }

// surface lists every shape of path below the two prefixes with its allowed methods, or none. USER stands for the
// user who asks.
var surface = []pathShape{
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
	{"/pushers/unsubscribe", "GET, HEAD, POST, OPTIONS"},
	{"/notifications", "GET, OPTIONS"},
	{"/user/USER/account_data/m.push_rules", "DELETE, GET, PUT, OPTIONS"},
	{"/user/USER/rooms/!r:x/account_data/m.push_rules", "DELETE, GET, PUT, OPTIONS"},

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
	{"/pushers/ack", "POST, OPTIONS"},
	{"/pushers/set/", ""},
	{"/pushers/set/a", ""},
}

func TestEveryMethodOnEveryPath(t *testing.T) {
	t.Parallel()
	var push *pushfx.Push
	s, routes := newWholeService(t, fx.Populate(&push))
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FOO"}
	for _, shape := range surface {
		t.Run(shape.path, func(t *testing.T) {
			contentType, isValid, methods := "application/json", isAnswer, methods
			if shape.path == "/pushers/unsubscribe" { // a page; unknown methods get the 404 of the paths below /pushers
				contentType, isValid, methods = "text/html; charset=UTF-8", func(hosttest.Answer) bool { return true }, methods[:len(methods)-1]
			}
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				for _, method := range methods {
					c := s.owner(t, prefix)
					path := strings.Replace(shape.path, "USER", c.user, 1)
					served := slices.Contains(strings.Split(shape.allow, ", "), method)
					if shape.allow != "" && !push.Owns(httptest.NewRequest(method, prefix+path, nil)) {
						t.Errorf("%s is not owned", method)
					}
					got := c.send(method+" "+path, "")
					switch {
					case shape.allow == "":
						c.wantRefusal(method, got, hosttest.Unrecognized)
					case method == "OPTIONS":
						if got.String() != "204 " {
							t.Errorf("OPTIONS: got %s", got)
						}
					case !served:
						c.wantRefusal(method, got, hosttest.MethodNotAllowed)
					case got.Status >= 500 || got.Header.Get("Content-Type") != contentType || !isValid(got):
						t.Errorf("%s: got %s", method, got)
					}
					if allow := got.Header.Get("Allow"); !served && allow != shape.allow || served && method != "OPTIONS" && allow != "" {
						t.Errorf("%s: Allow is %q, want %q", method, allow, shape.allow)
					}
				}
			})
		})
	}
	for _, path := range routes.notIn(surface) {
		t.Errorf("surface has no path of the route %s", path)
	}
}

// newWholeService starts a service with every route group.
func newWholeService(t *testing.T, options ...fx.Option) (*apiService, routeTable) {
	t.Helper()
	var routes routeTable
	return newService(t, append(options, pushfx.Delivery, pushfx.Unread, fx.Populate(&routes.Echo),
		fx.Provide(func() module.NotifiedEvents { return hosttest.RoomEvents{} }),
		fx.Decorate(func(c pushfx.Config) pushfx.Config { return hosttest.WithMail(c, "127.0.0.1:1") }))...), routes
}

// routeTable has the routes of a service.
type routeTable struct{ *echo.Echo }

// notIn returns the routes that serve no listed path.
func (r routeTable) notIn(list []pathShape) (missing []string) {
	asked := map[string]bool{}
	for _, shape := range list {
		for method := range strings.SplitSeq(strings.TrimSuffix(shape.allow, ", OPTIONS"), ", ") {
			for _, prefix := range []string{hosttest.R0, hosttest.V3} {
				c := r.NewContext(nil, nil)
				r.Router().Find(method, prefix+shape.path, c)
				asked[c.Path()] = true
			}
		}
	}
	for _, route := range r.Routes() {
		if !asked[route.Path] && !strings.HasPrefix(route.Path, "/_matrix/client/unstable/") && !strings.HasSuffix(route.Path, "*") && !slices.Contains(missing, route.Path) {
			missing = append(missing, route.Path)
		}
	}
	return missing
}

func (c *caller) wantRefusal(method string, got hosttest.Answer, want string) {
	c.t.Helper()
	if method == "HEAD" {
		want = want[:len("404 ")]
	}
	if got.String() != want || got.Header.Get("Content-Type") != "application/json" {
		c.t.Errorf("%s: got %s %q, want %s", method, got, got.Header.Get("Content-Type"), want)
	}
}

// isAnswer reports whether an answer is a JSON object; an error has an errcode and an error.
func isAnswer(a hosttest.Answer) bool {
	var body map[string]any
	if json.Unmarshal([]byte(a.Body), &body) != nil {
		return false
	}
	_, hasCode := body["errcode"].(string)
	_, hasText := body["error"].(string)
	return a.Status == 200 || hasCode && hasText && len(body) == 2
}

func TestUnservedPathsNeedNoRequester(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		nobody := &caller{t: t, on: s, prefix: prefix}
		nobody.takeAll(
			step{"GET /pushrules/global/override", "", hosttest.Unrecognized},
			step{"POST /pushrules/", "", hosttest.MethodNotAllowed},
			step{"POST /pushers", "", hosttest.MethodNotAllowed},
		)
		a, err := s.host.Try(context.Background(), "", "OPTIONS", prefix+"/pushers/set", "")
		if err != nil || a.Status != 204 {
			t.Errorf("OPTIONS: got %s, %v", a, err)
		}
	})
}
