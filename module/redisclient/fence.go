package redisclient

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// fence queues a command that protects the reads behind it in the same pipeline from
// stale replies during a manual failover of a cluster (CLUSTER FAILOVER).
//
// In such a failover, the old master delays writes until its replica has taken over. It
// still replies to reads, although the new master may already accept changes. Redis
// treats every script as a write, so a script delays the reads behind it. This script
// has no effect, and runs even if the master refuses writes. It does not help against
// other ways of promoting a replica.
func fence(ctx context.Context, to redis.Cmdable) { to.Eval(ctx, "return 1", nil) }

// maxBehindFence bounds the commands behind a fence, which protects only commands that
// Redis reads together with it, 16 KB at a time.
const maxBehindFence = 32
