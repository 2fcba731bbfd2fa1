package integration

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
)

// The queue keeps its contract also on the demo host's embedded Redis.
func TestTheQueueOnAnEmbeddedRedis(t *testing.T) {
	t.Parallel()
	server, _ := embedded(t)
	passing, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { // its clock moves only with FastForward
		for ticker := time.NewTicker(10 * time.Millisecond); passing.Err() == nil; <-ticker.C {
			server.FastForward(10 * time.Millisecond)
		}
	}()
	queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		t.Cleanup(func() { client.Close() })
		q, err := redisqueue.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return q
	})
}
