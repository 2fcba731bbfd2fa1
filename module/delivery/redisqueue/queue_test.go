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
				proxy.CutReply(5*(n+1), "EVALSHA")
				proxy.CutReply(4*(n+1), "EXEC")
			}
			return newQueue(t, proxy.Client(t))
		})
	})
}

func TestAQueueOfAnotherVersionIsNotOpened(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	for _, format := range []string{"2 8", "4 8"} {
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

// A key of another type stops its own pusher, but not the shard.
func TestAKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	ctx, keys := t.Context(), stored.Keys{}
	for shard, test := range []struct {
		key string
		set func(key string) error
	}{
		{keys.Backlog(0, "bad"), func(key string) error { return client.Set(ctx, key, "x", 0).Err() }},
		{keys.Texts(1, "bad"), func(key string) error { return client.Set(ctx, key, "x", 0).Err() }},
		{keys.ShardTrouble(2), func(key string) error { return client.Set(ctx, key, "x", 0).Err() }},
		{keys.ShardBytes(3), func(key string) error { return client.Set(ctx, key, "x", 0).Err() }},
		{keys.Texts(4, "none"), func(key string) error { return client.Set(ctx, key, "x", 0).Err() }}, // the control
	} {
		t.Run(test.key, func(t *testing.T) {
			if err := test.set(test.key); err != nil {
				t.Fatal(err)
			}
			q := newQueue(t, client)
			if err := q.Open(ctx, queuetest.Shards); err != nil {
				t.Fatal(err)
			}
			for n := range 3 { // the second and third have texts that count for the user
				b := module.DeliveryBatch{
					Shard: shard, Key: fmt.Sprint("event", n), Window: time.Minute, Lease: time.Minute, MaxBacklog: 10, MaxUserBytes: 1000,
				}
				for _, target := range []string{"bad", "good"} {
					b.Additions = append(b.Additions, module.Addition{Target: target, User: "user0000", Notification: module.Notification{
						ID: fmt.Sprintf("%016d", n), Priority: module.HighPriority, Room: "room0000", Text: "text",
					}})
				}
				if e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]; e.Err != nil || e.Value.Again {
					t.Fatalf("got %+v", e)
				}
			}
			claimed, err := q.Claim(ctx, 100, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range claimed.Backlogs {
				if b.Claim.Target != (module.Target{Shard: shard, Name: "good"}) {
					continue
				}
				trouble := "1 x"
				if all, err := q.Read(ctx, b.Claim, 10); err != nil || len(all) != 3 || all[2].Text != "text" {
					t.Errorf("got %v, %v", all, err)
				}
				if left, err := q.Complete(ctx, b.Claim, fmt.Sprintf("%016d", 0), trouble, ""); err != nil || left != 2 {
					t.Errorf("%d are left, %v", left, err)
				}
				if err := q.Postpone(ctx, b.Claim, time.Hour, &trouble); err != nil {
					t.Error(err)
				}
				return
			}
			t.Error("the other pusher's backlog is not due")
		})
	}
}
