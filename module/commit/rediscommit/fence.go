package rediscommit

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// fence queues a command which a master of a cluster holds back while it hands over
// to its replica, with all that follows in the same pipeline.
//
// In a failover by hand, the old master holds writes back until it knows that the
// replica has taken its place, and answers reads. The new master may take changes
// before that, and what the old one answers is stale then. Redis counts every script
// as a write there. This script needs no key, has no effect, and is executed also where
// writes are refused, as by a master that lacks replicas or memory. PERSIST would keep
// keys that are to expire.
//
// With a key, the command goes to the key's node, also by a client of the cluster.
//
// A replica that is promoted in another way than by CLUSTER FAILOVER does not ask its
// master to hold anything back.
func fence(ctx context.Context, to redis.Cmdable, keys ...string) {
	to.Eval(ctx, "return 1", keys)
}

// maxBehindFence bounds how many commands follow a fence, so that Redis reads them at
// once: it takes 16 KB at a time from a connection, and executes commands of others in
// between.
const maxBehindFence = 32
