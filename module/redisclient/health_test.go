package redisclient

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

func monitorWith(client redis.UniversalClient, cfg Config) *Monitor {
	return NewMonitor(client, cfg, fixedDurability{}, &journal{})
}

// late is how late a call may return on a busy machine.
const late = 5 * time.Second

// Fault is a part of the wanted error, empty for none.
func wantHealth(t *testing.T, client redis.UniversalClient, fault string) {
	t.Helper()
	start := time.Now()
	err := monitorWith(client, Config{}).Healthy(t.Context())
	switch {
	case fault == "" && err != nil:
		t.Errorf("not healthy: %v", err)
	case fault != "" && (err == nil || !strings.Contains(err.Error(), fault)):
		t.Errorf("got %v, want %q", err, fault)
	}
	if took := time.Since(start); took > surveyTimeout+late {
		t.Errorf("took %v", took)
	}
}

func TestSingleServerIsHealthyWhileItReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	wantHealth(t, client, "")
	server.Pause()
	wantHealth(t, client, "Redis at "+server.Addr())
	server.Resume()
	wantHealth(t, client, "")
	server.Stop()
	wantHealth(t, client, "Redis at "+server.Addr())
}

func TestServerThatRefusesScriptsIsUnhealthy(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "weak", "on", ">x", "~*", "+@all", "-@scripting").Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "weak", Password: "x", ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	wantHealth(t, client, "cannot run a script: NOPERM")
}

// A master without the rights of a part cannot serve. It stops a host at the start; later the other masters serve.
func TestRightsOfPartsAreChecked(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	grant := func(server *redistest.Server, rules ...any) {
		if err := server.Client(t).Do(t.Context(), append([]any{"ACL", "SETUSER", "host", "reset", "on", ">x", "+@all"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, server := range cluster.Masters() {
		grant(server, "~a:*")
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cluster.Addrs(), Username: "host", Password: "x", ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { client.Close() })
	check := func(when string, wantStart, wantHealth bool) {
		t.Helper()
		m := monitorWith(client, DefaultConfig())
		m.Require("unread counts", "LRANGE", "b:1", 0, 0)
		m.Require("pushers", "HLEN", "a:1")
		for name, test := range map[string]struct {
			err  error
			want bool
		}{"start": {m.Check(t.Context()), wantStart}, "health": {m.Healthy(t.Context()), wantHealth}} {
			switch {
			case test.want && test.err != nil:
				t.Errorf("%s, %s: %v", when, name, test.err)
			case !test.want && (test.err == nil || !strings.Contains(test.err.Error(), "lacks the rights of unread counts in its ACL: NOPERM")):
				t.Errorf("%s, %s: got %v", when, name, test.err)
			}
		}
	}
	check("no master grants them", false, false)
	grant(cluster.Masters()[0], "~a:*", "~b:*")
	check("one master grants them", false, true)
	for _, server := range cluster.Masters() {
		grant(server, "~a:*", "~b:*")
	}
	check("all masters grant them", true, true)
}

func TestServerThatRefusesHELLOIsHealthy(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "terse", "on", ">x", "~*", "+@all", "-hello").Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "terse", Password: "x", Protocol: 2, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	wantHealth(t, client, "")
}

func TestServerOfAnotherKindIsUnhealthy(t *testing.T) {
	t.Parallel()
	pair := redistest.Replicated(t, 1)
	for _, server := range pair.Servers() {
		if server == pair.Master() {
			wantHealth(t, server.Client(t), "")
			continue
		}
		wantHealth(t, server.Client(t), "is a replica")
		old := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, ContextTimeoutEnabled: true})
		t.Cleanup(func() { old.Close() })
		wantHealth(t, old, "is a replica")
	}
	node := redistest.Cluster(t, 3, 0).Masters()[0]
	wantHealth(t, node.Client(t), "is a node of a cluster, but the client is for one server")
}

func TestStartNamesTheClientThatDoesNotFit(t *testing.T) {
	t.Parallel()
	single, pair, cluster := redistest.Single(t), redistest.Replicated(t, 1), redistest.Cluster(t, 3, 0)
	forCluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{single.Addr()}, ContextTimeoutEnabled: true})
	universal := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: cluster.Addrs()[:1], ContextTimeoutEnabled: true})
	t.Cleanup(func() { forCluster.Close(); universal.Close() })
	for name, test := range map[string]struct {
		client redis.UniversalClient
		fault  string // empty for none
	}{
		"a client of a single server":              {single.Client(t), ""},
		"a cluster client":                         {cluster.Client(t), ""},
		"a wrapped client of a single server":      {wrapped{single.Client(t)}, ""},
		"NewUniversalClient with a cluster's node": {universal, cluster.Addrs()[0] + " is a node of a cluster, but the client is for one server, a *redis.Client: create it with redis.NewClusterClient"},
		"a cluster client of a single server":      {forCluster, single.Addr() + " is not a node of a cluster, but the client is a *redis.ClusterClient: create it with redis.NewClient"},
		"a wrapped cluster client":                 {wrapped{cluster.Client(t)}, "is a node of a cluster, of which a redisclient.wrapped does not show the masters: provide the *redis.ClusterClient itself"},
		"a client of a replica":                    {pair.Replicas()[0].Client(t), "is a replica"},
	} {
		m := monitorWith(test.client, DefaultConfig())
		err := m.Check(t.Context())
		if (err != nil) != (test.fault != "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: got %v, want %q", name, err, test.fault)
		}
		if healthy := m.Healthy(t.Context()); (healthy != nil) != (test.fault != "") {
			t.Errorf("%s: health is %v", name, healthy)
		}
	}
}

func TestClusterIsHealthyWhileOneMasterReplies(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	client := cluster.Client(t)
	wantHealth(t, client, "")
	masters := cluster.Masters()
	masters[0].Pause()
	t.Cleanup(masters[0].Resume)
	wantHealth(t, client, "")
	for _, master := range masters[1:] {
		master.Stop()
	}
	wantHealth(t, client, "Redis at "+masters[1].Addr())
}

func TestHealthCheckEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := monitorWith(client, Config{}).Healthy(ctx); err == nil {
		t.Error("a check with an ended context found a healthy Redis")
	}
}

func TestEvictionDependsOnPolicyAndMemoryLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	for _, test := range []struct {
		maxmemory, policy string
		evicts            bool
	}{
		{"0", "noeviction", false},
		{"100mb", "noeviction", false},
		{"0", "allkeys-lru", false},
		{"100mb", "allkeys-lru", true},
		{"100mb", "allkeys-lfu", true},
		{"100mb", "allkeys-random", true},
		{"100mb", "volatile-lru", false},
		{"100mb", "volatile-ttl", false},
	} {
		configure(t, client, "maxmemory", test.maxmemory)
		configure(t, client, "maxmemory-policy", test.policy)
		for _, allowed := range []bool{false, true} {
			cfg := DefaultConfig()
			cfg.AllowEviction = allowed
			m, want := monitorWith(client, cfg), test.evicts && !allowed
			for name, err := range map[string]error{"start": m.Check(t.Context()), "health": m.Healthy(t.Context())} {
				if (err != nil) != want || want && (!strings.Contains(err.Error(), test.policy) || !strings.Contains(err.Error(), server.Addr())) {
					t.Errorf("%+v, allowed %t: %s: got %v", test, allowed, name, err)
				}
			}
			if got := m.EvictingMasters() == 1; got != want {
				t.Errorf("%+v, allowed %t: %d masters evict", test, allowed, m.EvictingMasters())
			}
		}
	}
}

func configure(t *testing.T, client *redis.Client, name, value string) {
	t.Helper()
	if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryMasterIsAskedWhetherItEvicts(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	client, masters := cluster.Client(t), cluster.Masters()
	for _, master := range masters[1:] {
		configure(t, master.Client(t), "maxmemory", "100mb")
		configure(t, master.Client(t), "maxmemory-policy", "allkeys-lru")
	}
	masters[0].Stop() // the check must go on to the others
	m := monitorWith(client, Config{})
	err := m.Healthy(t.Context())
	for _, master := range masters[1:] {
		if err == nil || !strings.Contains(err.Error(), master.Addr()+" evicts keys") {
			t.Errorf("got %v, want %s in it", err, master.Addr())
		}
	}
	if m.EvictingMasters() != 2 {
		t.Errorf("%d masters evict", m.EvictingMasters())
	}
}

func TestUnknownEvictionPolicyIsOnlyReported(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "terse", "on", ">x", "~*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Username: "terse", Password: "x", ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: time.Second,
	})
	t.Cleanup(func() { client.Close() })
	m, reported := monitorOf(client, fixedDurability{})
	if err := errors.Join(m.Check(t.Context()), m.Healthy(t.Context())); err != nil {
		t.Error(err)
	}
	if len(reported.lines) != 1 || !strings.HasPrefix(reported.lines[0], "evicts: cannot tell whether the Redis at "+server.Addr()) {
		t.Errorf("reported %q", reported.lines)
	}
}
