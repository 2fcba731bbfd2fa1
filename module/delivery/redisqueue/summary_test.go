package redisqueue_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// counting is a hook that counts commands for the lengths of lists.
type counting struct {
	redis.Hook
	mu      sync.Mutex
	lengths int
}

func (c *counting) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		c.count(command)
		return next(ctx, command)
	}
}
func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		c.count(commands...)
		return next(ctx, commands)
	}
}

func (c *counting) count(commands ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, command := range commands {
		if command.Name() == "llen" {
			c.lengths++
		}
	}
}

func openQueue(t *testing.T, client redis.UniversalClient) *redisqueue.Queue {
	t.Helper()
	q := newQueue(t, client)
	if err := q.Open(t.Context(), queuetest.Shards); err != nil {
		t.Fatal(err)
	}
	return q
}

// A shard with many backlogs is read once, for all hosts, and in part.
func TestASummaryOfManyBacklogsIsAnEstimateAndShared(t *testing.T) {
	t.Parallel()
	const few, many = 3, 4 // shards
	keys := stored.Keys{}
	server := redistest.Single(t)
	client := server.Client(t)
	now := client.Time(t.Context()).Val().Unix()
	fill := func(shard, backlogs int, added int64, gate string) {
		t.Helper()
		_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for n := range backlogs {
				name := fmt.Sprint(gate, n)
				entry := fmt.Sprintf(`hid--------------roomroomuseruser000000%010d{}`, added)
				p.HSet(t.Context(), keys.ShardFirst(shard), name, stored.FirstEntry(gate, entry))
				p.RPush(t.Context(), keys.More(shard, name), entry)
				p.ZAdd(t.Context(), keys.Due(shard, gate), redis.Z{Score: float64(1e15 + n), Member: name})
				p.ZAdd(t.Context(), keys.ShardGates(shard), redis.Z{Score: 1e15, Member: gate})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fill(few, 5, now-100, "https://few app")
	fill(many, 999, now-500, "https://many app")
	fill(many, 1, now-900, "https://early app") // which no sample may miss
	hook := &counting{}
	observed := server.Client(t)
	observed.AddHook(hook)
	one, other := openQueue(t, observed), openQueue(t, observed)
	for n, q := range []*redisqueue.Queue{one, one, other, other} {
		s, err := q.Summary(t.Context())
		if err != nil || s.Notifications != 2010 || s.Gates["https://few app"] != 10 || s.Gates["https://many app"] < 1980 {
			t.Errorf("got %+v, %v", s, err)
		}
		if s.Oldest < 900*time.Second || s.Oldest > 910*time.Second {
			t.Errorf("the oldest is %v old", s.Oldest)
		}
		if want := map[bool]int{true: 5 + 128, false: 5}[n == 0]; hook.lengths != want {
			t.Errorf("call %d reads %d lists, want %d", n, hook.lengths, want)
		}
		hook.lengths = 0
	}
	if ttl := client.PTTL(t.Context(), keys.ShardSummary(many)).Val(); ttl <= 0 || ttl > 15*time.Second {
		t.Errorf("the shared summary lasts %v", ttl)
	}
}

// A Redis that refuses writes is noticed though nothing waits, and a key of another type
// stops no summary.
func TestASummaryFailsIfWritesAreRefused(t *testing.T) {
	t.Parallel()
	keys := stored.Keys{}
	server := redistest.Single(t)
	client := server.Client(t)
	q := openQueue(t, client)
	client.Set(t.Context(), keys.More(1, "text"), "x", 0)
	client.HSet(t.Context(), keys.ShardFirst(1), "text", "no record")
	client.RPush(t.Context(), keys.ShardSummary(2), "x")
	if s, err := q.Summary(t.Context()); err != nil || s.Notifications != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	if n := client.Exists(t.Context(), keys.ShardSummary(3)).Val(); n != 1 {
		t.Error("an empty shard does not test that Redis takes writes")
	}
	for _, test := range []struct{ setting, bad, good, says string }{
		{"min-replicas-to-write", "1", "0", "NOREPLICAS"},
		{"maxmemory", "1", "0", "OOM"},
	} {
		client.Del(t.Context(), keys.ShardSummary(3))
		if err := client.ConfigSet(t.Context(), test.setting, test.bad).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Summary(t.Context()); err == nil || !strings.Contains(fault.Details(err), test.says) {
			t.Errorf("%s: got error %v", test.says, err)
		}
		client.ConfigSet(t.Context(), test.setting, test.good)
	}
}
