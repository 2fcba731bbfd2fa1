package main

import (
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
)

// newRedis returns the module's Redis client. At the start it checks that the mode fits the
// servers.
func newRedis(lc fx.Lifecycle, cfg config) redis.UniversalClient {
	client := cfg.redis.Client()
	lc.Append(fx.StopHook(client.Close))
	lc.Append(fx.StartHook(cfg.redis.Check))
	return client
}
