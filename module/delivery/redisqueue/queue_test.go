package redisqueue_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redistest"
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
}

func TestAContextThatHasEndedAsksNoMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true, Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("Redis was asked")
			return nil, io.ErrClosedPipe
		}})
		defer client.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		q := newQueue(t, client)
		_, err := q.Look(ctx, module.Look{Limit: 1, Lease: time.Minute, Gate: func(string) module.GateLimit { return module.GateLimit{Most: 1, Failing: 1} }})
		for what, err := range map[string]error{"open": q.Open(ctx), "look": err} {
			if fault.KindOf(err) != fault.Unavailable || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got error %v", what, fault.Details(err))
			}
		}
		synctest.Wait()
	})
}
