package redisqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

func newQueue(t *testing.T, client redis.UniversalClient, change ...func(*rediscommit.Config)) *redisqueue.Queue {
	t.Helper()
	cfg := rediscommit.DefaultConfig()
	for _, c := range change {
		c(&cfg)
	}
	q, err := redisqueue.New(client, cfg, rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestContract(t *testing.T) {
	t.Parallel()
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue { return newQueue(t, server.Client(t)) })
	})
	t.Run("with a prefix", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			return newQueue(t, server.Client(t), func(c *rediscommit.Config) { c.KeyPrefix = "hs1:" })
		})
	})
	t.Run("cluster with replicas", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.Cluster(t, 3, 1)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			return newQueue(t, cluster.Client(t), func(c *rediscommit.Config) { c.Durability.Replicas = 1 })
		})
	})
	t.Run("behind proxies", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			proxy := redistest.NewProxy(t, server)
			for n := range 100 {
				proxy.CutReply(4*(n+1), "EXEC")
				proxy.CutReply(3*(n+1), "EVALSHA").With("}:sent:")      // completions and drops
				proxy.CutReply(3*(n+1), "EVALSHA").With("\r\nkeep\r\n") // postponements
				proxy.CutReply(3*(n+1), "EVALSHA").With("\r\nset\r\n")
			}
			proxy.CutReply(3, "EVALSHA") // looks; a claim whose reply is lost must lapse
			return newQueue(t, proxy.Client(t))
		})
	})
}

func TestAQueueOfAnotherVersionIsNotOpened(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	for _, format := range []string{"2 8", "3 8", "5 8"} {
		if err := client.Set(t.Context(), "delivery:format", format, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := newQueue(t, client).Open(t.Context(), 8); !fault.IsOtherVersion(err) {
			t.Errorf("%s: %v", format, err)
		}
		if got := client.Get(t.Context(), "delivery:format").Val(); got != format {
			t.Errorf("%s is now %s", format, got)
		}
	}
}

// A key of another type costs its own pusher or gate, and not its shard: hosts put it aside,
// or do without it.
func TestAKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	const gate = "https://push.example.org:443 app"
	server := redistest.Single(t)
	client := server.Client(t)
	ctx, keys := t.Context(), stored.Keys{}
	for shard, test := range []struct {
		name      string
		key       func(shard int) string
		isAside   bool
		isWithout bool // texts
	}{
		{"a list", func(shard int) string { return keys.More(shard, "bad") }, false, false},
		{"texts", keys.ShardTexts, true, true},
		{"troubles", keys.ShardTrouble, true, false},
		{"bytes", keys.ShardBytes, false, false},
		{"gates", keys.ShardGates, true, false},
		{"a gate", func(shard int) string { return keys.Due(shard, gate) }, true, false},
		{"another gate", func(shard int) string { return keys.Due(shard, "bad") }, true, false},
		{"first notifications", keys.ShardFirst, true, false},
		{"the control", func(shard int) string { return keys.More(shard, "none") }, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := client.Set(ctx, test.key(shard), "x", 0).Err(); err != nil {
				t.Fatal(err)
			}
			q := openQueue(t, client)
			for n := range 3 { // the second and third have texts that count for the user
				b := module.DeliveryBatch{
					Shard: shard, Key: fmt.Sprint("event", n), Window: time.Minute, Lease: time.Minute, MaxBacklog: 10, MaxUserBytes: 1000,
				}
				for target, gate := range map[string]string{"bad": "bad", "good": gate} {
					b.Additions = append(b.Additions, module.Addition{Target: target, Gate: gate, User: "user0000", Notification: module.Notification{
						ID: fmt.Sprintf("%016d", n), Priority: module.HighPriority, Room: "room0000", Text: "text",
					}})
				}
				if e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]; e.Err != nil || e.Value.Again {
					t.Fatalf("got %+v", e)
				}
			}
			var claimed *module.Backlog
			for range 3 { // a trouble of another type is found by the first one
				found, err := q.Claim(ctx, anything(100))
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range found.Backlogs {
					if b.Claim.Target == (module.Target{Shard: shard, Name: "good"}) {
						claimed = &b
					}
				}
			}
			if claimed == nil {
				t.Fatal("the other pusher's backlog is not due")
			}
			if all, err := q.Read(ctx, claimed.Claim, 10); err != nil || len(all) != 3 || all[2].Text != "text" || !test.isWithout && all[0].Text != "text" {
				t.Errorf("got %v, %v", all, err)
			}
			trouble := module.Trouble{Generation: 1, Text: "x"}
			if left, err := q.Complete(ctx, claimed.Claim, fmt.Sprintf("%016d", 0), trouble, ""); err != nil || left != 2 {
				t.Errorf("%d are left, %v", left, err)
			}
			if err := q.Postpone(ctx, claimed.Claim, gate, time.Hour, &trouble); err != nil {
				t.Error(err)
			}
			aside := client.Keys(ctx, keys.Aside(shard, "*")).Val()
			if isAside := len(aside) == 1 && client.Get(ctx, aside[0]).Val() == "x"; isAside != test.isAside {
				t.Errorf("put aside: %v, want %v", aside, test.isAside)
			}
		})
	}
}

// A key that is overwritten while backlogs wait loses none that it does not hold.
func TestBacklogsAreListedAgain(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	ctx, keys := t.Context(), stored.Keys{}
	for shard, key := range []func(shard int) string{keys.ShardGates, func(shard int) string { return keys.Due(shard, "gate1") }} {
		q := openQueue(t, client)
		const backlogs = 300
		b := module.DeliveryBatch{Shard: shard, Key: "event", Window: time.Minute, MaxBacklog: 10}
		for n := range backlogs {
			b.Additions = append(b.Additions, module.Addition{
				Target: fmt.Sprint("t", n), Gate: fmt.Sprint("gate", n%2), User: "user0000",
				Notification: module.Notification{ID: fmt.Sprintf("%016d", n), Priority: module.HighPriority, Room: "room0000"},
			})
		}
		if e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]; e.Err != nil {
			t.Fatal(e.Err)
		}
		client.Set(ctx, key(shard), "x", 0)
		seen := map[string]bool{}
		for range 20 {
			claimed, err := q.Claim(ctx, anything(100))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range claimed.Backlogs {
				if c.Claim.Target.Shard == shard && seen[c.Claim.Target.Name] {
					t.Fatalf("%s was claimed twice", c.Claim.Target.Name)
				}
				seen[c.Claim.Target.Name] = true
			}
		}
		if len(seen) != backlogs {
			t.Errorf("%s: %d of %d are claimed", key(shard), len(seen), backlogs)
		}
	}
}

// anything may be claimed.
func anything(limit int) module.Look {
	return module.Look{Limit: limit, Lease: time.Minute, Gate: func(string) (int, bool) { return limit, false }}
}
