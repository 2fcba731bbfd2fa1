package integration

import (
	"strings"
	"testing"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestAHostRefusesToStartOnARedisThatEvictsKeys(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	err := startable(server.Client(t)).Start(t.Context())
	for _, part := range []string{"pushfx: ", "evicts keys when its memory is full", server.Addr(), "allkeys-lru", "noeviction"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want %q in it", err, part)
		}
	}
	allowed := startable(server.Client(t), fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Servers.AllowEviction = true; return c }))
	if err := allowed.Start(t.Context()); err != nil {
		t.Errorf("where it is allowed: %v", err)
	}
	if err := allowed.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAHostIsNotReadyWhileRedisEvictsKeys(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t, "--maxmemory", "100mb")
	core, logs := observer.New(zapcore.WarnLevel)
	var health module.Health
	app := startable(server.Client(t), fx.Replace(zap.New(core)), fx.Populate(&health))
	if err := app.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		policy string
		ready  bool
	}{{"allkeys-random", false}, {"volatile-lru", true}, {"allkeys-lfu", false}, {"noeviction", true}} {
		if err := server.Client(t).ConfigSet(t.Context(), "maxmemory-policy", test.policy).Err(); err != nil {
			t.Fatal(err)
		}
		if err := health.Healthy(t.Context()); (err == nil) != test.ready {
			t.Errorf("%s: %v", test.policy, err)
		}
	}
	if err := app.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if logs.FilterMessage("Redis may evict keys").Len() != 0 {
		t.Errorf("logged: %v", logs.All())
	}
}
