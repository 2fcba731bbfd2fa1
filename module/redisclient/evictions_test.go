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

// fails is a report that nothing may come to.
func fails(t *testing.T) func(error) {
	return func(err error) { t.Errorf("reported: %v", err) }
}

func TestAMasterEvictsWithMostPoliciesOnceItsMemoryIsLimited(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
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
		{"100mb", "volatile-lfu", false},
		{"100mb", "volatile-random", false},
		{"100mb", "volatile-ttl", false},
	} {
		configure(t, client, "maxmemory", test.maxmemory)
		configure(t, client, "maxmemory-policy", test.policy)
		for _, allowed := range []bool{false, true} {
			cfg := Config{AllowEviction: allowed}
			e := NewEvictions(client, cfg, fails(t))
			want := test.evicts && !allowed
			if err := e.Check(t.Context()); (err != nil) != want || want && !strings.Contains(err.Error(), test.policy) {
				t.Errorf("%+v, allowed %t: got %v", test, allowed, err)
			}
			if got := e.Masters() == 1; got != want {
				t.Errorf("%+v, allowed %t: %d masters evict", test, allowed, e.Masters())
			}
			if err := NewHealth(client, cfg).Healthy(t.Context()); (err != nil) != want {
				t.Errorf("%+v, allowed %t: health: %v", test, allowed, err)
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

func TestEveryMasterOfAClusterIsAskedWhetherItEvicts(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	client, masters := cluster.Client(t), cluster.Masters()
	e := NewEvictions(client, Config{}, fails(t))
	if err := e.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for _, master := range masters[1:] {
		configure(t, master.Client(t), "maxmemory", "100mb")
		configure(t, master.Client(t), "maxmemory-policy", "allkeys-lru")
	}
	masters[0].Stop() // which keeps nobody from asking the others
	err := e.Check(t.Context())
	for _, master := range masters[1:] {
		if err == nil || !strings.Contains(err.Error(), master.Addr()) {
			t.Errorf("got %v, want %s in it", err, master.Addr())
		}
	}
	if e.Masters() != 2 {
		t.Errorf("%d masters evict", e.Masters())
	}
	wantWell(t, client, "evicts keys")
}

func TestAMasterThatBeginsToEvictIsReportedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	reports := make(chan error, 100)
	e := NewEvictions(client, Config{}, func(err error) { reports <- err })
	e.interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx) }()
	for range 2 {
		configure(t, client, "maxmemory", "100mb")
		configure(t, client, "maxmemory-policy", "allkeys-lru")
		if err := <-reports; !strings.Contains(err.Error(), server.Addr()) {
			t.Errorf("reported: %v", err)
		}
		configure(t, client, "maxmemory-policy", "noeviction")
		for e.Masters() != 0 {
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	<-ended
	if len(reports) != 0 {
		t.Errorf("reported again: %v", <-reports)
	}
}

func TestAServerThatCannotBeAskedWhetherItEvictsIsPassedOver(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	old := server.Client(t)
	old.AddHook(withoutInfo{})
	if err := NewEvictions(old, Config{}, fails(t)).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "terse", "on", ">x", "~*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	terse := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "terse", Password: "x"})
	t.Cleanup(func() { terse.Close() })
	var reported error
	err := NewEvictions(terse, Config{}, func(err error) { reported = err }).Check(t.Context())
	if err != nil || reported == nil || !strings.Contains(reported.Error(), "cannot tell whether the Redis at "+server.Addr()) {
		t.Errorf("got %v, reported %v", err, reported)
	}
}

// withoutInfo is a client of a server that knows of no INFO.
type withoutInfo struct{}

func (withoutInfo) DialHook(next redis.DialHook) redis.DialHook { return next }

func (withoutInfo) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "info" {
			return errors.New("ERR unknown command")
		}
		return next(ctx, cmd)
	}
}

func (withoutInfo) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
