package redisqueue_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
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
