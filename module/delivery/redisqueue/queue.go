// Package redisqueue is a [module.DeliveryQueue] on Redis; its API may change at any time.
// It needs Redis 6.2 or later: a single node, sentinels or a cluster. Each backlog has a list, and
// each shard a sorted set with the due times of its backlogs. All keys of a shard are in
// one slot.
//
// Claims lapse by the clock of Redis. Only Enqueue waits for the configured
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
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.DeliveryQueue = (*Queue)(nil)

const name = "delivery queue" // in errors

// Queue is a [module.DeliveryQueue] on Redis. It is safe for concurrent use, and needs
// no closing.
type Queue struct {
	client  redis.UniversalClient
	writer  *rediscommit.Writer
	timeout time.Duration // of an operation
	keys    stored.Keys
	shards  atomic.Int64 // 0 before Open

	completions completions
	looks       looks
}

// New does no I/O. Client is a *redis.Client or a *redis.ClusterClient that reads from
// masters; the caller closes it.
func New(client redis.UniversalClient, shared rediscommit.Config, o rediscommit.Options) (*Queue, error) {
	writer, err := rediscommit.NewWriter(client, name, observe.Delivery, shared, o)
	if err != nil {
		return nil, err
	}
	return &Queue{
		client: client, writer: writer, timeout: shared.OperationTimeout, keys: stored.Keys{Prefix: shared.KeyPrefix},
	}, nil
}

// Open implements [module.DeliveryQueue].
func (q *Queue) Open(ctx context.Context, shards int) error {
	want := stored.DeliveryFormatText(shards)
	var found string
	err := q.do(ctx, "open", func(ctx context.Context) (err error) {
		if err = q.client.SetNX(ctx, q.keys.DeliveryFormat(), want, 0).Err(); err == nil {
			found, err = q.client.Get(ctx, q.keys.DeliveryFormat()).Result()
		}
		return err
	})
	if err != nil {
		return err
	}
	if found == want {
		q.looks.open(shards)
		q.shards.Store(int64(shards))
		return nil
	}
	others, err := stored.ReadDeliveryFormat(found)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: it has %d shards, not %d: the number is fixed when it is first opened", name, others, shards)
}

// HeldGateways implements [module.DeliveryQueue].
func (q *Queue) HeldGateways(ctx context.Context) (names []string, err error) {
	err = q.do(ctx, "read held gateways", func(ctx context.Context) (err error) {
		names, err = q.client.HKeys(ctx, q.keys.DeliveryGateways()).Result()
		return err
	})
	return names, err
}

// run makes calls of scripts.
func (q *Queue) run(ctx context.Context, calls ...*redisclient.Call) []error {
	commands := make([]*redisclient.Command, len(calls))
	for i, call := range calls {
		commands[i] = call.Command()
	}
	return q.writer.Do(ctx, commands...)
}

// number runs a script that returns a number, or -1 if the claim is lost.
func (q *Queue) number(ctx context.Context, script *redisclient.Script, keys []string, args ...any) (int, error) {
	call := script.Call(keys, args...)
	if err := q.run(ctx, call)[0]; err != nil {
		return 0, err
	}
	return number(call.Reply)
}

func number(reply *redis.Cmd) (int, error) {
	n, err := reply.Int()
	switch {
	case err != nil:
		return 0, unavailable("read a reply", err)
	case n < 0:
		return 0, module.ErrFenced
	}
	return n, nil
}

// do runs commands that the client may repeat.
func (q *Queue) do(ctx context.Context, doing string, commands func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	if err := commands(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return unavailable(doing, err)
	}
	return nil
}

func unavailable(doing string, err error) error {
	return module.Unavailable(fmt.Errorf("%s: %s: %w", name, doing, err))
}
