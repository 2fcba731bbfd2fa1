package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/module/redistest"
)

const (
	maxWait = 30 * time.Second // of a sync

	v3 = "/_matrix/client/v3"
	r0 = "/_matrix/client/r0"
)

// client makes requests to a host, with a token unless it is empty.
type client struct {
	t     *testing.T
	url   string
	token string
	stop  func() // the host; at the end of the test at the latest
	logs  *observer.ObservedLogs
}

// start starts a host on a Redis, or on an embedded one if addr is empty. The host stops
// with the test. The client has no token.
func start(t *testing.T, addr string) client {
	t.Helper()
	logging.Disable() // it writes to stderr when the embedded Redis ends
	if addr == "" {
		addr = miniredis.RunT(t).Addr()
	}
	core, logs := observer.New(zap.InfoLevel)
	var server *echo.Echo
	running := fxtest.New(t, fx.NopLogger, app("127.0.0.1:0", addr), fx.Replace(zap.New(core)), fx.Populate(&server))
	running.RequireStart()
	stop := sync.OnceFunc(func() {
		running.RequireStop()
		if failed := logs.FilterLevelExact(zap.ErrorLevel); failed.Len() > 0 {
			t.Errorf("logged %v", failed.All())
		}
	})
	t.Cleanup(stop)
	return client{t, "http://" + server.Listener.Addr().String(), "", stop, logs}
}

// do makes a request, and reads the answer if into is not nil.
func (c client) do(ctx context.Context, method, path, body string, into any) (status int) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
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
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		c.t.Errorf("%s %s: got %d %s, %v", method, path, response.StatusCode, text, err)
	}
	return response.StatusCode
}

// want makes a request that must have a status.
func (c client) want(status int, method, path, body string) {
	c.t.Helper()
	var answer any
	if got := c.do(c.t.Context(), method, path, body, &answer); got != status {
		c.t.Errorf("%s %s: got %d %v, want %d", method, path, got, answer, status)
	}
}

// login logs a user in with a new device and returns their client.
func (c client) login(name string) client {
	c.t.Helper()
	var session struct {
		Token string `json:"access_token"`
	}
	if status := c.do(c.t.Context(), "POST", v3+"/login?user="+name, "", &session); status != 200 {
		c.t.Fatalf("got %d", status)
	}
	c.token = session.Token
	return c
}

// batch is the answer to a sync.
type batch struct {
	Next        string `json:"next_batch"`
	AccountData struct {
		Events []struct {
			Type    string
			Content json.RawMessage
		}
	} `json:"account_data"`
}

func (c client) sync(query string) (b batch) {
	c.t.Helper()
	if status := c.do(c.t.Context(), "GET", v3+"/sync?"+query, "", &b); status != 200 {
		c.t.Errorf("sync: got %d", status)
	}
	return b
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

func TestASyncWaitsForAChange(t *testing.T) {
	t.Parallel()
	alice := start(t, "").login("alice")
	first := alice.sync("")
	if len(first.AccountData.Events) != 1 || !strings.Contains(string(first.AccountData.Events[0].Content), ".m.rule.master") {
		t.Fatalf("got %+v", first)
	}
	if nothing := alice.sync("timeout=1&since=" + first.Next); nothing.Next != first.Next || len(nothing.AccountData.Events) != 0 {
		t.Errorf("without a change: got %+v", nothing)
	}
	woken := make(chan batch, 1)
	go func() { woken <- alice.sync("timeout=30000&since=" + first.Next) }()
	alice.want(200, "PUT", v3+"/pushrules/global/room/!a:b", mute)
	select {
	case second := <-woken:
		if len(second.AccountData.Events) != 1 || !strings.Contains(string(second.AccountData.Events[0].Content), "!a:b") {
			t.Errorf("got %+v", second)
		}
	case <-time.After(10 * time.Second):
		t.Error("the sync was not woken")
	}
}

// TestAStopAnswersSyncs checks that a stop ends syncs that wait, and that nothing is
// logged as an error if a client hangs up; [start] looks at the log.
func TestAStopAnswersSyncs(t *testing.T) {
	t.Parallel()
	alice := start(t, "").login("alice")
	since := alice.sync("").Next
	ctx, hangUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer hangUp()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, alice.url+v3+"/sync?timeout=30000&since="+since, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+alice.token)
	if _, err := http.DefaultClient.Do(request); err == nil {
		t.Error("the sync did not wait")
	}
	answered := make(chan batch, 1)
	go func() { answered <- alice.sync("timeout=30000&since=" + since) }()
	time.Sleep(50 * time.Millisecond) // most often, the sync waits then
	began := time.Now()
	alice.stop()
	if got := <-answered; got.Next != since {
		t.Errorf("got %+v", got)
	}
	if took := time.Since(began); took > maxWait/2 {
		t.Errorf("the stop took %v", took)
	}
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
	stored := func() bool {
		fields, err := server.Client(t).HGetAll(t.Context(), "pushers:{@alice:localhost}").Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(fmt.Sprint(fields), "phone")
	}
	if !stored() {
		t.Error("the pusher is not in Redis")
	}
	alice.want(200, "POST", v3+"/logout", "")
	if stored() {
		t.Error("the pusher has survived the logout of its device")
	}
}

// Login and logout go on while Redis is away: the first read of the rules
// creates them afterwards, and no pusher of the device is sent to.
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
	for _, at := range []string{"login", "logout"} {
		if stranger.logs.FilterMessage("push: a call failed").FilterField(zap.String("at", at)).Len() != 1 {
			t.Errorf("logged %v", stranger.logs.All())
		}
	}
}

// A change that cannot be read for a sync is sent with a later one: the token does
// not move.
func TestASyncLosesNoChangeWhileRedisIsSilent(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	alice := start(t, server.Addr()).login("alice")
	first := alice.sync("")
	alice.want(200, "PUT", v3+"/pushrules/global/room/!a:b", mute)
	server.Pause()
	silent := alice.sync("timeout=1&since=" + first.Next)
	if len(silent.AccountData.Events) != 0 || silent.Next != first.Next {
		t.Errorf("while Redis is silent: got %+v after %s", silent, first.Next)
	}
	waiting := make(chan batch, 1)
	go func() { waiting <- alice.sync("timeout=30000&since=" + silent.Next) }()
	for deadline := time.Now().Add(maxWait); alice.logs.FilterField(zap.String("at", "sync")).Len() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the sync has read")
		}
	}
	began := time.Now()
	server.Resume()
	got := <-waiting
	if len(got.AccountData.Events) != 1 || !strings.Contains(string(got.AccountData.Events[0].Content), "!a:b") {
		t.Errorf("after Redis was silent: got %+v", got)
	}
	if took := time.Since(began); took > maxWait/2 {
		t.Errorf("it took %v", took)
	}
}
