package api

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
)

// secrets are in the requests below and must not be in a log.
var secrets = []string{"secret-pushkey", "secret-pattern", "secret-token", "secret-url", "secret-action", "secret-condition"}

var secretEndpoints = []struct{ request, body string }{
	{"GET /pushrules/?access_token=secret-token", ""},
	{"GET /pushrules/global/?access_token=secret-token", ""},
	{"GET /pushrules/global/override/mine?access_token=secret-token", ""},
	{"PUT /pushrules/global/content/mine?access_token=secret-token", `{"rule":{"actions":["secret-action"],"pattern":"secret-pattern"}}`},
	{"GET /pushrules/global/override/mine/actions", ""},
	{"PUT /pushrules/global/override/mine/actions", `{"actions":["secret-action"]}`},
	{"GET /pushrules/global/override/mine/enabled", ""},
	{"PUT /pushrules/global/override/mine/enabled", `{"enabled":false,"x":"secret-condition"}`},
	{"DELETE /pushrules/global/override/mine", ""},
	{"GET /pushers?access_token=secret-token", ""},
	{"POST /pushers/set", hosttest.PusherWith(`"pushkey":"secret-pushkey"`, `"data":{"url":"https://x/_matrix/push/v1/notify?secret-url"}`)},
}

func (s *apiService) secretOwner(t *testing.T, prefix string) *caller {
	t.Helper()
	c := s.owner(t, prefix)
	c.change(
		`PUT /pushrules/global/override/mine {"actions":["secret-action"],"conditions":[{"kind":"secret-condition"}]}`,
		`PUT /pushrules/global/content/other {"actions":[],"pattern":"secret-pattern"}`,
		"POST /pushers/set "+hosttest.PusherWith(`"pushkey":"secret-pushkey1"`),
	)
	return c
}

// wantOutage calls all endpoints at once. Each must be unavailable, log one entry with the cause and no secret,
// and change nothing.
func (c *caller) wantOutage(cause string) {
	c.t.Helper()
	before := c.on.redis.Dump()
	var requests sync.WaitGroup
	for _, endpoint := range secretEndpoints {
		requests.Go(func() {
			method, path, _ := strings.Cut(endpoint.request, " ")
			got, err := c.on.host.Try(context.Background(), c.user, method, c.prefix+path, endpoint.body)
			if err != nil || got.String() != hosttest.Unavailable {
				c.t.Errorf("%s: got %s, %v", endpoint.request, got, err)
			}
		})
	}
	requests.Wait()
	logged := c.on.host.TakeLogged()
	routes := map[string]bool{}
	for _, entry := range logged {
		fields := entry.ContextMap()
		routes[fmt.Sprint(fields["method"], fields["route"])] = true
		c.wantEntry(entry, cause)
	}
	if n := len(secretEndpoints); len(logged) != n || len(routes) != n {
		c.t.Errorf("%d entries for %d endpoints, want one for each of %d", len(logged), len(routes), n)
	}
	if after := c.on.redis.Dump(); after != before {
		c.t.Errorf("stored is %s, was %s", after, before)
	}
}

func (c *caller) wantEntry(entry observer.LoggedEntry, cause string) {
	c.t.Helper()
	fields := entry.ContextMap()
	text := fmt.Sprint(entry.Message, fields)
	if entry.Message != "request failed" || entry.Level != zap.ErrorLevel ||
		fields["user_id"] != c.user || fields["status"] != int64(503) {
		c.t.Errorf("logged %s", text)
	}
	if route, _ := fields["route"].(string); !strings.HasPrefix(route, c.prefix+"/push") || strings.Contains(route, "mine") {
		c.t.Errorf("logged the route %s", route)
	}
	if err, _ := fields["error"].(string); !strings.Contains(err, cause) {
		c.t.Errorf("logged the error %q, want %q in it", err, cause)
	}
	for _, secret := range secrets {
		if strings.Contains(text, secret) {
			c.t.Errorf("logged %s", text)
		}
	}
}

func (c *caller) wantService() {
	c.t.Helper()
	for _, endpoint := range secretEndpoints {
		if got := c.send(endpoint.request, endpoint.body); got.Status != 200 {
			c.t.Errorf("%s: got %s", endpoint.request, got)
		}
	}
}

func TestOutageWhenRedisReturnsErrors(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, cause := range []string{"ERR internal-cause", "OOM command not allowed when used memory > 'maxmemory'.", "NOAUTH Authentication required."} {
		c := s.secretOwner(t, hosttest.R0)
		s.redis.SetError(cause)
		c.wantOutage(cause)
		s.redis.SetError("")
		c.wantService()
	}
}

// silence is a hook that drops Redis's answers while it is on.
type silence struct{ on atomic.Bool }

func (s *silence) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *silence) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s.on.Load() {
			<-ctx.Done()
			cmd.SetErr(ctx.Err())
			return ctx.Err()
		}
		return next(ctx, cmd)
	}
}

func (s *silence) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if s.on.Load() {
			<-ctx.Done()
			for _, cmd := range cmds {
				cmd.SetErr(ctx.Err())
			}
			return ctx.Err()
		}
		return next(ctx, cmds)
	}
}

func TestOutageWhenRedisDoesNotAnswer(t *testing.T) {
	t.Parallel()
	var silent silence
	server, client := hosttest.Embedded(t)
	client.AddHook(&silent)
	s := &apiService{hosttest.StartHost(t, client, fx.Decorate(func(c pushfx.Config) pushfx.Config {
		hosttest.SetTimeouts(&c, 2*time.Second)
		return c
	})), server}
	c := s.secretOwner(t, hosttest.V3)
	silent.on.Store(true)
	c.wantOutage(context.DeadlineExceeded.Error())
	silent.on.Store(false)
	c.wantService()
}
