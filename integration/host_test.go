package integration

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/mxid"
)

// host is a homeserver in the test's process, on a real listener.
type host struct {
	t    testing.TB
	url  string // "http://127.0.0.1:port"
	http *http.Client
	logs *observer.ObservedLogs
}

// startHost includes the module as any host does. The bearer token is the user id. Options come after the
// module's.
func startHost(t testing.TB, client redis.UniversalClient, options ...fx.Option) *host {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := fxtest.New(t,
		fx.NopLogger,
		pushfx.Module,
		fx.Supply(zap.New(withoutStart{core}, zap.AddStacktrace(zap.ErrorLevel)), fx.Annotate(client, fx.As(new(redis.UniversalClient)))),
		fx.Provide(echo.New),
		fx.Invoke(
			fx.Annotate(mount, fx.ParamTags("", pushfx.RouteGroups)),
			func(lc fx.Lifecycle, e *echo.Echo) {
				server := &http.Server{Handler: e, ReadHeaderTimeout: 5 * time.Second}
				lc.Append(fx.StartStopHook(func() { go server.Serve(listener) }, server.Shutdown))
			},
		),
		fx.Options(options...),
	)
	app.RequireStart()
	t.Cleanup(app.RequireStop)
	transport := &http.Transport{MaxIdleConnsPerHost: writers}
	t.Cleanup(transport.CloseIdleConnections) // before the stop, which would wait for them
	return &host{t, "http://" + listener.Addr().String(), &http.Client{Transport: transport}, logs}
}

func mount(e *echo.Echo, groups []handlers.RouteGroup) {
	for _, group := range groups {
		group.Register(e.Group(v3), handlers.V3, authenticate)
		group.Register(e.Group(r0), handlers.R0, authenticate)
	}
	handlers.RegisterUnstable(e.Group("/_matrix/client/unstable"), groups, authenticate)
}

func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		token, found := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
		if found {
			who := handlers.Requester{User: mxid.UserID(token), Device: device}
			c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		}
		return next(c)
	}
}

const device = "DEV"

const (
	r0 = "/_matrix/client/r0"
	v3 = "/_matrix/client/v3"
)

func embedded(t testing.TB) (*miniredis.Miniredis, redis.UniversalClient) {
	t.Helper()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ContextTimeoutEnabled: true, DialTimeout: time.Second / 2, ReadTimeout: time.Second,
	})
	t.Cleanup(func() { client.Close() })
	return server, client
}

// withoutStart leaves out the log entry of each start.
type withoutStart struct{ zapcore.Core }

func (c withoutStart) With(fields []zapcore.Field) zapcore.Core {
	return withoutStart{c.Core.With(fields)}
}

func (c withoutStart) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if entry.Message == "pushfx is ready" {
		return to
	}
	return c.Core.Check(entry, to)
}

// takeLogged returns the log entries of requests since the last call. It leaves out the entry of a broken watch,
// which may appear at any time without a Redis.
func (h *host) takeLogged() []observer.LoggedEntry {
	return slices.DeleteFunc(h.logs.TakeAll(), func(entry observer.LoggedEntry) bool {
		return entry.Message == "change feed disconnected from Redis, reconnecting"
	})
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request as a user. The path is sent byte for byte. An empty user sends no token.
func (h *host) do(user, method, path, body string) answer {
	h.t.Helper()
	a, err := h.try(context.Background(), user, method, path, body)
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

// try is do for requests that may fail.
func (h *host) try(ctx context.Context, user, method, path, body string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if user != "" {
		req.Header.Set("Authorization", "Bearer "+user)
	}
	res, err := h.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text)}, err
}

// setTimeouts takes never as the longest timeout that the module allows.
func setTimeouts(c *pushfx.Config, timeout time.Duration) {
	timeout = min(timeout, 30*time.Second)
	c.Handlers.RequestTimeout, c.Redis.OperationTimeout = timeout, timeout
}
