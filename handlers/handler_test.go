package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func byHeader(r *http.Request) (Requester, error) {
	switch token := r.Header.Get("Authorization"); token {
	case "":
		return Requester{}, ErrMissingToken
	case "unknown":
		return Requester{}, ErrUnknownToken
	case "broken":
		return Requester{}, errors.New("secret")
	default:
		return Requester{User: mxid.UserID(token)}, nil
	}
}

type contents struct{ module.HostService }

func (contents) AccountData(context.Context, mxid.UserID) ([]byte, error) {
	return []byte(`{"global":{}}`), nil
}

func answerTo(h http.Handler, request, token string) *httptest.ResponseRecorder {
	method, path, _ := strings.Cut(request, " ")
	r := httptest.NewRequest(method, path, nil)
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	return answer
}

func TestAHandlerServesAHostWithoutEcho(t *testing.T) {
	t.Parallel()
	rules := newServer(t, zap.NewNop()).PushRules(rulesFunc{read: func(context.Context) (pushrule.Ruleset, error) {
		return pushrule.Read(`{}`)
	}})
	h := Handler(byHeader, zap.NewNop(), rules)
	for _, test := range []struct {
		request, token string
		status         int
		body           string
	}{
		{"GET /_matrix/client/r0/pushrules/global/", "@a:b", 200, `{"global":{}}`},
		{"GET /_matrix/client/v3/pushrules/global/", "@a:b", 200, `{}`},
		{"GET /_matrix/client/r0/pushrules/", "", 401, `{"errcode":"M_MISSING_TOKEN","error":"Missing access token."}`},
		{"GET /_matrix/client/r0/pushrules/", "unknown", 401, `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`},
		{"GET /_matrix/client/r0/pushrules/", "broken", 500, `{"errcode":"M_UNKNOWN","error":"Internal server error."}`},
		{"GET /_matrix/client/r0/other", "@a:b", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`},
		{"GET /pushrules/", "@a:b", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`},
	} {
		if a := answerTo(h, test.request, test.token); a.Code != test.status || a.Body.String() != test.body {
			t.Errorf("%s as %q: got %d %s, want %d %s", test.request, test.token, a.Code, a.Body, test.status, test.body)
		}
	}
}

// A host that forgot its Auth serves no request as anybody's, and its log names the remedy.
func TestAHandlerWithoutAuthSaysSo(t *testing.T) {
	t.Parallel()
	const request, body = "GET /_matrix/client/v3/pushrules/", `{"errcode":"M_UNKNOWN","error":"Internal server error."}`
	core, logs := observer.New(zap.ErrorLevel)
	rules := newServer(t, zap.NewNop()).PushRules(nil)
	for name, log := range map[string]*zap.Logger{"with a log": zap.New(core), "without": nil} {
		if a := answerTo(Handler(nil, log, rules), request, "@a:b"); a.Code != 500 || a.Body.String() != body {
			t.Errorf("%s: got %d %s", name, a.Code, a.Body)
		}
	}
	if all := logs.All(); len(all) != 1 || !strings.Contains(fmt.Sprint(all[0].ContextMap()["error"]), "the Auth is nil: pass a function") {
		t.Errorf("logged %v", all)
	}
}

func TestARequestIsOwnedIfTheModuleServesIt(t *testing.T) {
	t.Parallel()
	server := newServer(t, zap.NewNop())
	h := Handler(byHeader, zap.NewNop(), server.PushRules(nil), server.Pushers(nil), server.AccountData(nil))
	const (
		served = iota // 401 without a token, with one of its methods
		owned         // 404 in the module's words
		hosts
	)
	for path, want := range map[string]int{
		"/pushrules":                                      served,
		"/pushrules/":                                     served,
		"/pushrules/?from=x":                              served,
		"/pushrules/global":                               served,
		"/pushrules/global/":                              served,
		"/pushrules/device/room/!r:x":                     served,
		"/pushrules/global/room/!r:x":                     served,
		"/pushrules/global/room/%21r%3Ax%2Fy":             served,
		"/pushrules/global/room/..":                       served,
		"/pushrules/global/room/%2e%2e":                   served,
		"/pushrules/global/room/!r:x/enabled":             served,
		"/pushrules/global/room/!r:x/actions":             served,
		"/pushers":                                        served,
		"/pushers/set":                                    served,
		"/pushers/ack":                                    served,
		"/user/@a:b/account_data/m.push_rules":            served,
		"/user/%40a%3Ab%2Fc/account_data/m.push_rules":    served,
		"/user/@a:b/rooms/!r:x/account_data/m.push_rules": served,

		"/pushrules/global/room/!r:x/other":                 owned,
		"/pushrules/a/b/c/d/e":                              owned,
		"/pushers/":                                         owned,
		"/pushers/other":                                    owned,
		"/%70ushers":                                        owned,
		"/user/@a:b/account_data/m%2Epush_rules":            owned,
		"/user/%40a%3Ab/account_data/m.push%5Frules":        owned,
		"/user/@a:b/rooms/!r:x/account_data/m%2Epush_rules": owned,

		"":                                       hosts,
		"/":                                      hosts,
		"/sync":                                  hosts,
		"/login":                                 hosts,
		"/pushrules_of_hosts":                    hosts,
		"/pushrules%2Fglobal":                    hosts,
		"/pushers_of_hosts":                      hosts,
		"//pushers":                              hosts,
		"/rooms/pushers":                         hosts,
		"/user/@a:b/account_data/m.push_rules/x": hosts,
		"/user/@a:b/account_data/m.push_rules_of_hosts":      hosts,
		"/user/@a:b/account_data/m.direct":                   hosts,
		"/user/@a:b/account_data":                            hosts,
		"/user/@a:b/rooms/!r:x/account_data/m.fully_read":    hosts,
		"/user/@a:b/rooms/!r:x/other/m.push_rules":           hosts,
		"/user/@a:b%2Faccount_data/m.push_rules":             hosts,
		"/user/@a:b/account_data/x%2Faccount_data":           hosts,
		"/user/@a:b/rooms/!r:x/tags/account_data":            hosts,
		"/user/@a:b/openid/request_token":                    hosts,
		"/user/pushers":                                      hosts,
		"/profile/pushrules":                                 hosts,
		"/rooms/!r:x/account_data/m.push_rules/m.push_rules": hosts,
	} {
		for _, prefix := range []string{"/_matrix/client/v3", "/_matrix/client/r0"} {
			status := map[int]bool{}
			for _, method := range []string{"GET", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"} {
				r := httptest.NewRequest(method, prefix+path, nil)
				if got := Owns(r); got != (want != hosts) {
					t.Errorf("%s %s%s: owned %t, want %t", method, prefix, path, got, want != hosts)
				}
				status[answerTo(h, method+" "+prefix+path, "").Code] = true
			}
			if served := want == served; status[http.StatusUnauthorized] != served || len(status) == 1 && served || status[http.StatusNotFound] == served {
				t.Errorf("%s%s is answered %v", prefix, path, status)
			}
		}
	}
	const unstable = "/_matrix/client/unstable/org.matrix.msc4174/pushers/ack"
	post, get := answerTo(h, "POST "+unstable, ""), answerTo(h, "GET "+unstable, "")
	if !Owns(httptest.NewRequest(http.MethodPost, unstable, nil)) || post.Code != http.StatusUnauthorized || get.Code != http.StatusMethodNotAllowed {
		t.Errorf("the unstable path: got %d, %d", post.Code, get.Code)
	}
	for _, path := range []string{unstable + "/x", "/pushers", "/pushrules/", "/v3/pushers", "/_matrix/client/v1/pushers", "/_matrix/client/v31/pushers", "/x/_matrix/client/v3/pushers"} {
		if Owns(httptest.NewRequest(http.MethodGet, path, nil)) {
			t.Errorf("%s is owned", path)
		}
	}
}

func TestTheAccountDataOfPushRulesIsServedAndRefusesChanges(t *testing.T) {
	t.Parallel()
	accountData := newServer(t, zap.NewNop()).AccountData(contents{})
	e := echo.New()
	hosts := e.Group("/v3")
	hosts.Any("/user/:user/rooms/:room/account_data/:type", func(c echo.Context) error { return c.String(http.StatusTeapot, "the host's") })
	hosts.Any("/user/:user/account_data/:type", func(c echo.Context) error { return c.String(http.StatusTeapot, "the host's") })
	accountData.Register(e.Group("/v3"), V3, Auth(byHeader).middleware(zap.NewNop()))
	const own, ofRoom = "/v3/user/@a:b/account_data/m.push_rules", "/v3/user/@a:b/rooms/!r:x/account_data/m.push_rules"
	for _, test := range []struct {
		request string
		status  int
		body    string
	}{
		{"GET " + own, 200, `{"global":{}}`},
		{"GET /v3/user/%40a%3Ab/account_data/m.push_rules", 200, `{"global":{}}`},
		{"PUT " + own, 405, `{"errcode":"M_BAD_JSON","error":"Cannot set m.push_rules through this API. Use /pushrules."}`},
		{"DELETE " + own, 405, `{"errcode":"M_BAD_JSON","error":"Cannot set m.push_rules through this API. Use /pushrules."}`},
		{"POST " + own, 405, `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}`},
		{"GET /v3/user/@c:b/account_data/m.push_rules", 403, `{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`},
		{"PUT /v3/user/@c:b/account_data/m.push_rules", 403, `{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`},
		{"PUT " + ofRoom, 405, `{"errcode":"M_BAD_JSON","error":"Cannot set m.push_rules through this API. Use /pushrules."}`},
		{"DELETE " + ofRoom, 405, `{"errcode":"M_BAD_JSON","error":"Cannot set m.push_rules through this API. Use /pushrules."}`},
		{"GET " + ofRoom, 404, `{"errcode":"M_NOT_FOUND","error":"Account data not found."}`},
		{"POST " + ofRoom, 405, `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}`},
		{"PUT /v3/user/@c:b/rooms/!r:x/account_data/m.push_rules", 403, `{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`},
		{"PUT /v3/user/@a:b/rooms/!r:x/account_data/m.fully_read", http.StatusTeapot, "the host's"},
		{"GET " + own + "_of_mine", http.StatusTeapot, "the host's"},
		{"POST /v3/user/@a:b/account_data/m.direct", http.StatusTeapot, "the host's"},
	} {
		if a := answerTo(e, test.request, "@a:b"); a.Code != test.status || a.Body.String() != test.body {
			t.Errorf("%s: got %d %s, want %d %s", test.request, a.Code, a.Body, test.status, test.body)
		}
	}
}
