package handlers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

func newServer(t testing.TB, log *zap.Logger) *Server {
	t.Helper()
	s, err := NewServer(DefaultConfig(), nil, log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The host may strip the prefix, so the path does not determine the dialect.
func TestTheDialectIsTheOneThatTheRoutesWereMountedWith(t *testing.T) {
	t.Parallel()
	for dialect, want := range map[Dialect]string{V3: `{}`, R0: `{"global":{}}`} {
		group := newServer(t, zap.NewNop()).PushRules(rulesFunc{read: func(context.Context) (pushrule.Ruleset, error) {
			return pushrule.Read(`{}`)
		}})
		e := echo.New()
		group.Register(e.Group(""), dialect, asAlice)
		answer := httptest.NewRecorder()
		stripped := http.StripPrefix("/_matrix/client/r0", e)
		stripped.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/_matrix/client/r0/pushrules/global/", nil))
		if answer.Code != 200 || answer.Body.String() != want {
			t.Errorf("dialect %v: got %d %s, want %s", dialect, answer.Code, answer.Body, want)
		}
	}
}

type (
	rulesFunc struct {
		module.RuleService
		read func(ctx context.Context) (pushrule.Ruleset, error)
	}
	pushersFunc struct {
		module.PusherService
		read func(ctx context.Context, user mxid.UserID) (pusher.List, error)
	}
)

func (f rulesFunc) Content(ctx context.Context, _ mxid.UserID) (module.Content, error) {
	rules, err := f.read(ctx)
	return module.Content{Rules: rules}, err
}

func (f pushersFunc) List(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	return f.read(ctx, user)
}

func serveRules(
	t *testing.T, log *zap.Logger, read func(context.Context) (pushrule.Ruleset, error),
	request *http.Request, middleware ...echo.MiddlewareFunc,
) *httptest.ResponseRecorder {
	t.Helper()
	group := newServer(t, log).PushRules(rulesFunc{read: read})
	e := echo.New()
	group.Register(e.Group("/_matrix/client/v3"), V3, middleware...)
	answer := httptest.NewRecorder()
	e.ServeHTTP(answer, request)
	return answer
}

func asAlice(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx := WithRequester(c.Request().Context(), Requester{User: "@alice:example.org"})
		c.SetRequest(c.Request().WithContext(ctx))
		return next(c)
	}
}

func fails(err error) func(context.Context) (pushrule.Ruleset, error) {
	return func(context.Context) (pushrule.Ruleset, error) { return pushrule.Ruleset{}, err }
}

const allRules = "/_matrix/client/v3/pushrules/"

func TestLogging(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, test := range []struct {
		name   string
		ctx    context.Context
		err    error
		status int
		logged string // the error in the log, empty for no entry
	}{
		{"success", context.Background(), nil, 200, ""},
		{"refusal", context.Background(), pushrule.ErrRuleNotFound, 404, ""},
		{"unavailable", context.Background(), module.Unavailable(errors.New("cause")), 503,
			"The server cannot reach its storage, try again later.: cause"},
		{"no fault", context.Background(), errors.New("cause"), 500, "cause"},
		{"unreadable", context.Background(), fault.New(fault.Database, "Bad."), 500, "Bad."},
		{"the client is gone", gone, module.Unavailable(context.Canceled), 503, ""},
		{"the client is gone, the data unreadable", gone, fault.New(fault.Database, "Bad."), 500, "Bad."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			core, logs := observer.New(zapcore.DebugLevel)
			request := httptest.NewRequestWithContext(test.ctx, "GET", allRules+"?access_token=secret", nil)
			answer := serveRules(t, zap.New(core), fails(test.err), request, asAlice)
			if answer.Code != test.status {
				t.Errorf("got %d %s, want %d", answer.Code, answer.Body, test.status)
			}
			if test.logged == "" {
				if logs.Len() != 0 {
					t.Errorf("logged %v", logs.All())
				}
				return
			}
			if logs.Len() != 1 {
				t.Fatalf("logged %v, want one entry", logs.All())
			}
			fields := logs.All()[0].ContextMap()
			for name, want := range map[string]any{
				"user_id": "@alice:example.org", "method": "GET", "route": allRules,
				"status": int64(test.status), "error": test.logged,
			} {
				if fields[name] != want {
					t.Errorf("%s is %v, want %v", name, fields[name], want)
				}
			}
		})
	}
}

func TestServicesGetADeadline(t *testing.T) {
	t.Parallel()
	rules := func(ctx context.Context) (pushrule.Ruleset, error) {
		if deadline, set := ctx.Deadline(); !set || time.Until(deadline) > DefaultConfig().RequestTimeout {
			t.Errorf("the deadline is %v, %v", deadline, set)
		}
		return pushrule.Ruleset{}, nil
	}
	serveRules(t, zap.NewNop(), rules, httptest.NewRequest(http.MethodGet, allRules, nil), asAlice)
}

func TestRegisterLeavesTheHostAlone(t *testing.T) {
	t.Parallel()
	server := newServer(t, zap.NewNop())
	rules := server.PushRules(rulesFunc{read: fails(errors.New("cause"))})
	pushers := server.Pushers(pushersFunc{read: func(context.Context, mxid.UserID) (pusher.List, error) {
		return pusher.List{}, nil
	}})
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) { c.String(http.StatusTeapot, "the host's") }
	for _, prefix := range []string{"/r0", "/v3"} {
		host := e.Group(prefix, asAlice)
		host.GET("/sync", func(c echo.Context) error { return c.String(200, "sync") })
		host.GET("/pushrules_of_the_host", func(c echo.Context) error { return c.String(200, "other") })
		rules.Register(host, V3)
		pushers.Register(host, V3)
	}
	for _, test := range []struct {
		request string
		status  int
		body    string
	}{
		{"GET /v3/sync", 200, "sync"},
		{"GET /r0/pushrules_of_the_host", 200, "other"},
		{"GET /v3/other", http.StatusTeapot, "the host's"},
		{"POST /v3/sync", http.StatusTeapot, "the host's"},
		{"GET /v3", http.StatusTeapot, "the host's"},
		{"GET /pushers", http.StatusTeapot, "the host's"},
		{"GET /r0/pushers", 200, `{"pushers":[]}`},
		{"GET /v3/pushers", 200, `{"pushers":[]}`},
		{"GET /v3/pushers/x", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`},
		{"GET /v3/pushrules/", 500, `{"errcode":"M_UNKNOWN","error":"Internal server error."}`},
	} {
		method, path, _ := strings.Cut(test.request, " ")
		answer := httptest.NewRecorder()
		e.ServeHTTP(answer, httptest.NewRequest(method, path, nil))
		if answer.Code != test.status || answer.Body.String() != test.body {
			t.Errorf("%s: got %d %s, want %d %s", test.request, answer.Code, answer.Body, test.status, test.body)
		}
	}
}

func TestBodyThatBreaksOff(t *testing.T) {
	t.Parallel()
	request := httptest.NewRequest(http.MethodPut, allRules+"global/room/a/enabled", brokenBody{})
	answer := serveRules(t, zap.NewNop(), fails(nil), request, asAlice)
	if answer.Code != 400 || !strings.Contains(answer.Body.String(), "M_NOT_JSON") {
		t.Errorf("got %d %s, want 400 M_NOT_JSON", answer.Code, answer.Body)
	}
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("connection reset") }
