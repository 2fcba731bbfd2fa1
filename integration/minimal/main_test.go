package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	v3 = "/_matrix/client/v3"
	r0 = "/_matrix/client/r0"
)

type client struct {
	t     *testing.T
	url   string
	token string
	logs  *observer.ObservedLogs
}

// start starts a host on a Redis, or on an embedded one if addr is empty, until the test
// ends. More is added to the host.
func start(t *testing.T, addr string, more ...fx.Option) client {
	t.Helper()
	logging.Disable() // it writes to stderr when the embedded Redis ends
	if addr == "" {
		addr = miniredis.RunT(t).Addr()
	}
	core, logs := observer.New(zap.InfoLevel)
	var server *echo.Echo
	running := fxtest.New(t, fx.NopLogger, app("127.0.0.1:0", addr), fx.Replace(zap.New(core)), fx.Populate(&server), fx.Options(more...))
	running.RequireStart()
	t.Cleanup(func() {
		running.RequireStop()
		if failed := logs.FilterLevelExact(zap.ErrorLevel); failed.Len() > 0 {
			t.Errorf("logged %v", failed.All())
		}
	})
	return client{t, "http://" + server.Listener.Addr().String(), "", logs}
}

// do makes a request and reads the answer.
func (c client) do(method, path, body string, into any) (status int) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return 0
	}
	request.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.t.Error(err)
		return 0
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		c.t.Errorf("%s %s: got %d %s, %v", method, path, response.StatusCode, text, err)
	}
	return response.StatusCode
}

func (c client) want(status int, method, path, body string) {
	c.t.Helper()
	var answer any
	if got := c.do(method, path, body, &answer); got != status {
		c.t.Errorf("%s %s: got %d %v, want %d", method, path, got, answer, status)
	}
}

func (c client) login(name string) client {
	c.t.Helper()
	var session struct {
		Token string `json:"access_token"`
	}
	if status := c.do("POST", v3+"/login?user="+name, "", &session); status != 200 {
		c.t.Fatalf("got %d", status)
	}
	c.token = session.Token
	return c
}

const (
	mute   = `{"actions":[]}`
	pusher = `{"kind":"http","app_id":"app","pushkey":"phone","app_display_name":"","device_display_name":"","lang":"en",` +
		`"data":{"url":"https://p.example/_matrix/push/v1/notify"}}`
)

func TestAUserFromLoginToLogout(t *testing.T) {
	t.Parallel()
	alice := start(t, "").login("alice")
	alice.want(200, "PUT", v3+"/pushrules/global/room/!a:b", mute) // before any read: the login created the defaults
	alice.want(200, "GET", v3+"/pushrules/", "")
	alice.want(200, "GET", r0+"/pushrules/global/room/!a:b", "")
	alice.want(200, "GET", v3+"/user/@alice:localhost/account_data/m.push_rules", "")
	alice.want(200, "POST", v3+"/pushers/set", pusher)
	alice.want(200, "POST", v3+"/logout", "")
	alice.want(401, "GET", v3+"/pushers", "")
	alice.want(401, "POST", v3+"/logout", "")
}

type profile struct{}

func (profile) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.GET("/profile", func(c echo.Context) error { return c.JSON(http.StatusOK, struct{}{}) }, auth...)
}

func TestAGroupOfTheHostIsServed(t *testing.T) {
	t.Parallel()
	stranger := start(t, "", fx.Provide(pushfx.AsRouteGroup(func() profile { return profile{} })))
	stranger.want(401, "GET", v3+"/profile", "")
	alice := stranger.login("alice")
	alice.want(200, "GET", v3+"/profile", "")
	alice.want(200, "GET", r0+"/profile", "")
}

func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	stranger := start(t, "")
	alice := stranger.login("alice")
	stranger.want(400, "POST", v3+"/login?user="+strings.Repeat("a", 300), "")
	stranger.want(401, "GET", v3+"/pushrules/", "")
	stranger.want(401, "POST", v3+"/logout", "")
	for _, c := range []client{stranger, alice} {
		c.want(404, "GET", v3+"/nowhere", "")
		c.want(404, "GET", v3+"/pushrules/nowhere/a", "")
		c.want(405, "POST", v3+"/pushers", "{}")
	}
	alice.want(403, "GET", v3+"/user/@bob:localhost/account_data/m.push_rules", "")
}

func TestPushersAreStoredInRedisUntilLogout(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	alice := start(t, server.Addr()).login("alice")
	alice.want(200, "POST", v3+"/pushers/set", pusher)
	stored := func() (n int) {
		fields, err := server.Client(t).HGetAll(t.Context(), "pushers:{@alice:localhost}").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range fields {
			n += strings.Count(value, `"pushkey":"phone"`)
		}
		return n
	}
	before := stored()
	alice.want(200, "POST", v3+"/logout", "")
	after := stored()
	if before != 1 || after != 0 {
		t.Errorf("%d pushers before the logout of their device, %d after it", before, after)
	}
	t.Logf("%d pusher before the logout of its device, %d after it", before, after)
}

func TestLoginAndLogoutWorkWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	stranger := start(t, server.Addr())
	alice := stranger.login("alice")
	alice.want(200, "POST", v3+"/pushers/set", pusher)
	server.Stop()
	bob := stranger.login("bob")
	alice.want(200, "POST", v3+"/logout", "")
	server.Start()
	alice.want(401, "GET", v3+"/pushers", "")
	bob.want(200, "GET", v3+"/pushrules/", "")
	bob.want(200, "PUT", v3+"/pushrules/global/room/!a:b", mute)
	for _, message := range []string{"could not create push rules", "could not remove pushers"} {
		if stranger.logs.FilterMessage(message).Len() != 1 {
			t.Errorf("logged %v", stranger.logs.All())
		}
	}
}
