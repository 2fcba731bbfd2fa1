package main

import (
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
)

// newRedis returns the module's Redis client. When the host starts, it checks that the servers have the mode of
// -redis-mode.
func newRedis(lc fx.Lifecycle, cfg config) redis.UniversalClient {
	client := cfg.redis.Client()
	lc.Append(fx.StopHook(client.Close))
	lc.Append(fx.StartHook(cfg.redis.Check))
	return client
}
