package faults

import (
	"strings"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestAHostRefusesToStartOnARedisThatEvictsKeys(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	err := hosttest.Startable(server.Client(t)).Start(t.Context())
	for _, part := range []string{"pushfx: ", "evicts keys when its memory is full", server.Addr(), "allkeys-lru", "noeviction"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want %q in it", err, part)
		}
	}
	allowed := hosttest.Startable(server.Client(t), fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Servers.AllowEviction = true; return c }))
	if err := allowed.Start(t.Context()); err != nil {
		t.Errorf("where it is allowed: %v", err)
	}
	if err := allowed.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
