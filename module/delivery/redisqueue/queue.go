// Package redisqueue is a [module.DeliveryQueue] on Redis; its API may change at any time.
// It needs Redis 6.2 or later: a single node, sentinels or a cluster.
//
// A user's log is a hash in the user's slot; see [stored.Keys.UserLog]. The index has shards
// with the users of each gate, by the time to look at their logs. It is never the truth. Its
// rules keep each user with something to send listed:
//
//  1. Every append lists the user, at the earliest time of the user's pushers at each gate,
//     also for a pusher that another host has claimed: that host may die before it lists.
//  2. A listing only lowers a score, and always changes it.
//  3. Only a host that has looked raises or removes a score, or a host that has listed, and
//     got the score before it completed the last notification. It compares the score first.
//  4. Append returns after the listing.
//  5. A completion compares the claim's nonce and number.
//
// Times of two masters are never compared: a script on a log returns how long to wait, and
// the index adds that to its own time. A user is listed in a shard on the user's own master
// if there is one, so a master that is away affects the listings of its own users only.
//
// Claims lapse by the clock of Redis. Only Append waits for the configured
// [rediscommit.Durability]: after a failover that loses claims and completions,
// notifications are sent again.
package redisqueue

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.DeliveryQueue = (*Queue)(nil)

const name = "delivery queue" // in errors

// Queue is a [module.DeliveryQueue] on Redis. It is safe for concurrent use, and needs
// no closing.
type Queue struct {
	connection
	Index Index

	ends    batch[end]
	largest atomic.Pointer[map[string]int] // gates of the last summary
	nonce   string                         // of this host, as the one that summarizes
}

// connection is what a queue and its index share.
type connection struct {
	writer    *rediscommit.Writer
	pipelines *redisclient.Pipelines
	keys      stored.Keys
}

// New does no I/O. Client is a *redis.Client or a *redis.ClusterClient that reads from
// masters; the caller closes it.
func New(client redis.UniversalClient, shared rediscommit.Config, o rediscommit.Options) (*Queue, error) {
	o.Pipelines = o.PipelinesOn(client)
	writer, err := rediscommit.NewWriter(client, name, observe.Delivery, shared, o)
	if err != nil {
		return nil, err
	}
	c := connection{writer, o.Pipelines, stored.Keys{Prefix: shared.KeyPrefix}}
	q := &Queue{
		connection: c, nonce: newNonce(),
		Index: Index{connection: c, Shards: DefaultShards, looks: looks{good: map[int]time.Time{}, over: map[int]int{}}},
	}
	q.largest.Store(&map[string]int{})
	return q, nil
}

// Open implements [module.DeliveryQueue]. It succeeds if a master is away, even the one with
// the format: looks compare the format, too.
func (q *Queue) Open(ctx context.Context) error {
	read := q.Index.readIndex(ctx)
	if len(read.failed) == q.Index.Shards {
		for _, err := range read.failed {
			return err
		}
	}
	return q.Index.checkFormat(ctx, read.format)
}

// Partition implements [module.DeliveryQueue]: a part has the users of a master.
func (q *Queue) Partition(ctx context.Context, users []mxid.UserID) [][]mxid.UserID {
	return rediscommit.Partition(ctx, q.pipelines, users, q.keys.UserLog)
}

// command returns a single command of Redis, which sets the reply.
func command[C redis.Cmder](key string, reply *C, queue func(context.Context, redisclient.Sender) C) *redisclient.Command {
	return &redisclient.Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
		*reply = queue(ctx, to)
		return (*reply).Err
	}}
}

// read makes reads, which may find nothing, and returns the first error.
func (c *connection) read(ctx context.Context, commands ...*redisclient.Command) error {
	for _, err := range c.writer.Read(ctx, commands...) {
		if err := unlessNil(err); err != nil {
			return err
		}
	}
	return nil
}

// readEach makes reads, which may find nothing, and calls done with the index of each one that
// was answered: a reply must not be used after an error. It returns the error of another read.
func (c *connection) readEach(ctx context.Context, commands []*redisclient.Command, done func(i int)) (err error) {
	for i, failed := range c.writer.Read(ctx, commands...) {
		if failed = unlessNil(failed); failed != nil {
			err = failed
			continue
		}
		done(i)
	}
	return err
}

func unlessNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

func sliceOf(call *redisclient.Call) ([]any, error) {
	reply, err := call.Reply.Slice()
	if err != nil {
		return nil, unavailable("read a reply", err)
	}
	return reply, nil
}

// microseconds is the stored form of a duration.
func microseconds(d time.Duration) int64 { return max(0, d.Microseconds()) }

func unavailable(doing string, err error) error {
	return module.Unavailable(fmt.Errorf("%s: %s: %w", name, doing, err))
}
