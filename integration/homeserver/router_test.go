package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

type failing struct {
	module.HostService
	err error
}

func (f failing) AccountData(context.Context, mxid.UserID) ([]byte, error) { return nil, f.err }

func (f failing) Rulesets(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	return nil
}

func (f failing) Register(g *echo.Group, _ handlers.Dialect, _ ...echo.MiddlewareFunc) {
	g.GET("/panic", func(echo.Context) error { panic("a bug") })
	g.GET("/error", func(echo.Context) error { return f.err })
}

func request(t *testing.T, part failing, path string) (*httptest.ResponseRecorder, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	server, err := handlers.NewServer(handlers.DefaultConfig(), nil, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	users := sessions.New(hosttest.OpenData(t), "localhost", func(mxid.UserID) {})
	router := routerOf(&api{sessions: users, log: zap.New(core)}, part, server.AccountData(part))
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer demo-alice")
	w := httptest.NewRecorder()
	router.ServeHTTP(w, r)
	return w, logs
}

func routerOf(a *api, more ...handlers.RouteGroup) *echo.Echo {
	a.limits, a.push = newLimits(0, 0), &pushfx.Push{}
	return newRouter(config{}, append(more, a), a, newAuth(a.sessions, a.limits), newDrain(config{}), newGuard(config{}), a.log)
}

const accountDataPath = "/_matrix/client/v3/user/@alice:localhost/account_data/m.push_rules"

func TestErrorsAreAnsweredAndLoggedOnce(t *testing.T) {
	t.Parallel()
	const internal = `{"errcode":"M_UNKNOWN","error":"Internal server error."}`
	for _, test := range []struct {
		name, path string
		err        error
		status     int
		body       string
		logged     int
	}{
		{"panic", "/_matrix/client/v3/panic", nil, 500, internal, 1},
		{"any error", "/_matrix/client/v3/error", errors.New("secret"), 500, internal, 1},
		{
			"store out of reach", accountDataPath, module.Unavailable(errors.New("secret")),
			503, `{"errcode":"M_UNKNOWN","error":"The server cannot reach its storage, try again later."}`, 1,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w, logs := request(t, failing{err: test.err}, test.path)
			if body := strings.TrimSpace(w.Body.String()); w.Code != test.status || body != test.body {
				t.Errorf("got %d %s, want %d %s", w.Code, body, test.status, test.body)
			}
			if w.Header().Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("got headers %v", w.Header())
			}
			if logs.Len() != test.logged {
				t.Errorf("logged %v", logs.All())
			}
		})
	}
}
