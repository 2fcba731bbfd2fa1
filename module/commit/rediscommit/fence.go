package rediscommit

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// fence queues a command that protects the reads after it in the same pipeline from
// stale replies during a manual failover of a cluster (CLUSTER FAILOVER).
//
// In such a failover, the old master delays writes until its replica has taken over, but
// still replies to reads. The new master may accept changes in the meantime, so these
// replies may be stale. Redis treats every script as a write, so a script delays the whole
// pipeline. This one needs no key, has no effect, and runs even if writes are refused, for
// example by a master that lacks replicas or memory.
//
// With a key, a cluster client sends the command to the key's node. Other ways of
// promoting a replica delay nothing on the old master.
func fence(ctx context.Context, to redis.Cmdable, keys ...string) {
	to.Eval(ctx, "return 1", keys)
}

// maxBehindFence bounds the commands after a fence. Redis reads 16 KB at a time from a
// connection and may execute other clients' commands in between; a fence protects only
// commands that Redis reads together with it.
const maxBehindFence = 32
