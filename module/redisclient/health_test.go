package redisclient

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

// late is how much later than it must a call may return here, where other tests
// run at the same time.
const late = 5 * time.Second

// wantWell fails where a Redis is not as healthy as is wanted: fault is a part
// of the error, empty for none.
func wantWell(t *testing.T, client redis.UniversalClient, fault string) {
	t.Helper()
	start := time.Now()
	err := NewHealth(client, Config{}).Healthy(t.Context())
	switch {
	case fault == "" && err != nil:
		t.Errorf("not healthy: %v", err)
	case fault != "" && (err == nil || !strings.Contains(err.Error(), fault)):
		t.Errorf("got %v, want %q", err, fault)
	}
	if took := time.Since(start); took > healthTimeout+late {
		t.Errorf("took %v", took)
	}
}

func TestASingleServerIsHealthyWhileItAnswers(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	wantWell(t, client, "")
	server.Pause()
	wantWell(t, client, "Redis at "+server.Addr())
	server.Resume()
	wantWell(t, client, "")
	server.Stop()
	wantWell(t, client, "Redis at "+server.Addr())
}

func TestAServerThatRefusesScriptsIsNotHealthy(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "weak", "on", ">x", "~*", "+@all", "-@scripting").Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "weak", Password: "x", ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	wantWell(t, client, "cannot run a script: NOPERM")
}

func TestAServerThatMayNotBeAskedIsTakenForGood(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "terse", "on", ">x", "~*", "+@all", "-hello").Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "terse", Password: "x", Protocol: 2, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	wantWell(t, client, "")
}

func TestAServerOfAnotherKindIsNotHealthy(t *testing.T) {
	t.Parallel()
	pair := redistest.Replicated(t, 1)
	for _, server := range pair.Servers() {
		if server == pair.Master() {
			wantWell(t, server.Client(t), "")
			continue
		}
		wantWell(t, server.Client(t), "is a replica")
		old := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, ContextTimeoutEnabled: true})
		t.Cleanup(func() { old.Close() })
		wantWell(t, old, "is a replica")
	}
	node := redistest.Cluster(t, 3, 0).Masters()[0]
	wantWell(t, node.Client(t), "is a node of a cluster, but the client is for one server")
}

func TestAClusterIsHealthyWhileOneMasterAnswers(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	client := cluster.Client(t)
	wantWell(t, client, "")
	masters := cluster.Masters()
	masters[0].Pause()
	t.Cleanup(masters[0].Resume)
	wantWell(t, client, "")
	for _, master := range masters[1:] {
		master.Stop()
	}
	wantWell(t, client, "Redis at "+masters[1].Addr())
}

func TestAHealthCheckEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewHealth(client, Config{}).Healthy(ctx); err == nil {
		t.Error("a look without time found something")
	}
}
