// Package redisqueue is a [module.DeliveryQueue] on Redis; its API may change at any time.
// It needs Redis 6.2 or later: a single node, sentinels or a cluster. Each shard has a
// hash with the oldest notification of each backlog, and a sorted set for each gate with
// the due times of its backlogs. A backlog with more notifications has a list, too. All
// keys of a shard are in one slot.
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
	writer   *rediscommit.Writer
	observer observe.Observer
	keys     stored.Keys
	shards   atomic.Int64 // 0 before Open

	completions completions
	looks       looks
	unlisted    unlisted
}

// New does no I/O. Client is a *redis.Client or a *redis.ClusterClient that reads from
// masters; the caller closes it.
func New(client redis.UniversalClient, shared rediscommit.Config, o rediscommit.Options) (*Queue, error) {
	writer, err := rediscommit.NewWriter(client, name, observe.Delivery, shared, o)
	if err != nil {
		return nil, err
	}
	return &Queue{writer: writer, observer: observe.Or(o.Observer), keys: stored.Keys{Prefix: shared.KeyPrefix}}, nil
}

// Open implements [module.DeliveryQueue].
func (q *Queue) Open(ctx context.Context, shards int) error {
	want, key := stored.DeliveryFormatText(shards), q.keys.DeliveryFormat()
	var set *redis.BoolCmd
	if err := q.writer.Do(ctx, command(key, &set, func(ctx context.Context, to redisclient.Sender) *redis.BoolCmd {
		return to.SetNX(ctx, key, want, 0)
	}))[0]; err != nil {
		return err
	}
	var found *redis.StringCmd
	if err := q.read(ctx, command(key, &found, func(ctx context.Context, to redisclient.Sender) *redis.StringCmd { return to.Get(ctx, key) })); err != nil {
		return err
	}
	if found.Val() == want {
		q.looks.open(shards)
		q.shards.Store(int64(shards))
		return nil
	}
	others, err := stored.ReadDeliveryFormat(found.Val())
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: it has %d shards, not %d: the number is fixed when it is first opened", name, others, shards)
}

// HeldGateways implements [module.DeliveryQueue].
func (q *Queue) HeldGateways(ctx context.Context) ([]string, error) {
	key := q.keys.DeliveryGateways()
	var names *redis.StringSliceCmd
	err := q.read(ctx, command(key, &names, func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
		return to.HKeys(ctx, key)
	}))
	if err != nil {
		return nil, err
	}
	return names.Val(), nil
}

// command returns a single command of Redis, which sets the reply.
func command[C redis.Cmder](key string, reply *C, queue func(context.Context, redisclient.Sender) C) *redisclient.Command {
	return &redisclient.Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
		*reply = queue(ctx, to)
		return (*reply).Err
	}}
}

// read makes reads, which may find nothing. It returns the error of a key of another type
// only if there is no other error; see [unlessWrongType].
func (q *Queue) read(ctx context.Context, commands ...*redisclient.Command) (err error) {
	for _, failed := range q.writer.Read(ctx, commands...) {
		if failed != nil && !errors.Is(failed, redis.Nil) && unlessWrongType(err) == nil {
			err = failed
		}
	}
	return err
}

// run calls scripts. If a key has a wrong type, it renames the key with putAside, and
// repeats the call.
func (q *Queue) run(ctx context.Context, calls ...*redisclient.Call) []error {
	return q.runBy(ctx, q.writer.Do, calls...)
}

func (q *Queue) runBy(ctx context.Context, do func(context.Context, ...*redisclient.Command) []error, calls ...*redisclient.Call) []error {
	commands := make([]*redisclient.Command, len(calls))
	for i, call := range calls {
		commands[i] = call.Command()
	}
	errs := do(ctx, commands...)
	for i, err := range errs {
		if isWrongType(err) && q.putAside(ctx, calls[i].Keys()) {
			errs[i] = do(ctx, commands[i])[0]
		}
	}
	return errs
}

// number runs a script that returns a number, or -1 if the claim is lost.
func (q *Queue) number(ctx context.Context, script *redisclient.Script, keys []string, args ...any) (int, error) {
	call := script.Call(keys, args...)
	if err := q.run(ctx, call)[0]; err != nil {
		return 0, err
	}
	n, err := call.Reply.Int()
	if err != nil {
		return 0, unavailable("read a reply", err)
	}
	return unlessFenced(n)
}

func unlessFenced(n int) (int, error) {
	if n < 0 {
		return 0, module.ErrFenced
	}
	return n, nil
}

func unavailable(doing string, err error) error {
	return module.Unavailable(fmt.Errorf("%s: %s: %w", name, doing, err))
}
