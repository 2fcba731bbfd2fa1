// Package redisqueue is a [module.DeliveryQueue] on Redis; its API, but for [Config],
// may change at any time. Each shard has a stream, and a hash with its owner and what
// that has achieved.
//
// It works on Redis 6.2 or later as a single node, behind sentinels and as a
// cluster, with any number of hosts on one Redis. All keys of a shard are in one
// slot. While that moves, what is sent is sent again until it has moved.
//
// Leases end by the clock of Redis, and are fenced by epochs. A failover can lose
// what Redis has acknowledged, as [rediscommit.Durability] tells: the last entries
// of logs, the last checkpoints, whose notifications are then sent again, and that a
// host has taken a shard, which another may then take beside it until the first asks
// again, a second later.
package redisqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
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

// Queue is a [module.DeliveryQueue] on Redis. It is safe for concurrent use, does
// no I/O of its own accord, and needs no closing. An owner's checkpoints of a shard
// have to come from one Queue.
type Queue struct {
	client     redis.UniversalClient
	timeout    time.Duration // of an operation
	logEntries int           // see [Config]
	keys       stored.Keys
	writer     *rediscommit.Writer
	number     atomic.Int64 // of the last checkpoint
}

// New returns a queue on client, which stays the caller's and must be a
// *redis.Client or a *redis.ClusterClient that reads from masters. The Durability
// of shared says when what is handed over, and what was achieved, counts as kept.
func New(client redis.UniversalClient, shared rediscommit.Config, cfg Config, o rediscommit.Options) (*Queue, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	writer, err := rediscommit.NewWriter(client, name, observe.Delivery, shared, o)
	if err != nil {
		return nil, err
	}
	return &Queue{
		client: client, timeout: shared.OperationTimeout, logEntries: cfg.LogEntries,
		keys: stored.Keys{Prefix: shared.KeyPrefix}, writer: writer,
	}, nil
}

// name is that of the store, for errors.
const name = "delivery queue"

// Open checks the number of shards; see [module.DeliveryQueue].
func (q *Queue) Open(ctx context.Context, shards int) error {
	want := stored.DeliveryFormatText(shards)
	var found string
	err := q.do(ctx, "open", func(ctx context.Context) (err error) {
		if err = q.client.SetNX(ctx, q.keys.DeliveryFormat(), want, 0).Err(); err == nil {
			found, err = q.client.Get(ctx, q.keys.DeliveryFormat()).Result()
		}
		return err
	})
	if err != nil || found == want {
		return err
	}
	if others, known := stored.ReadDeliveryFormat(found); known {
		return fmt.Errorf("%s: it has %d shards, not %d: the number is fixed when it is first opened", name, others, shards)
	}
	return fmt.Errorf("%s: its form is %q, which this version cannot read", name, found)
}

// Join says that a host is alive; see [module.DeliveryQueue].
func (q *Queue) Join(ctx context.Context, host string, lasts time.Duration) ([]string, error) {
	call := rediscommit.Call{Script: join, Keys: []string{q.keys.DeliveryHosts()}, Args: []any{host, lasts.Milliseconds()}}
	if err := q.writer.Do(ctx, call.Write())[0]; err != nil {
		return nil, err
	}
	hosts, err := call.Reply.StringSlice()
	if err != nil {
		return nil, unavailable("join", err)
	}
	slices.Sort(hosts)
	return hosts, nil
}

// Leave takes a host back; see [module.DeliveryQueue].
func (q *Queue) Leave(ctx context.Context, host string) error {
	return q.do(ctx, "leave", func(ctx context.Context) error {
		return q.client.ZRem(ctx, q.keys.DeliveryHosts(), host).Err()
	})
}

// mostAdded is how much is added to an epoch at most: a second.
const mostAdded = 1_000_000

// Acquire takes or renews leases; see [module.DeliveryQueue]. A lease that a
// failover could take back is not held: the new master would give the shard to
// another host meanwhile.
func (q *Queue) Acquire(ctx context.Context, host string, lasts time.Duration, shards []int) map[int]module.Result[module.Lease] {
	calls := make([]rediscommit.Call, len(shards))
	writes := make([]rediscommit.Write, len(shards))
	for i, shard := range shards {
		calls[i] = rediscommit.Call{
			Script: acquire,
			Keys:   []string{q.keys.ShardState(shard), q.keys.ShardLog(shard), q.keys.ShardInstructions(shard)},
			Args:   []any{host, lasts.Milliseconds(), 1 + rand.IntN(mostAdded)},
		}
		writes[i] = calls[i].Write()
	}
	leases := make(map[int]module.Result[module.Lease], len(shards))
	for i, err := range q.writer.DoDurably(ctx, writes...) {
		var lease module.Lease
		if err == nil {
			lease, err = readLease(calls[i].Reply)
		}
		leases[shards[i]] = module.Result[module.Lease]{Value: lease, Err: err}
	}
	return leases
}

// readLease reads what acquireScript returns.
func readLease(reply *redis.Cmd) (module.Lease, error) {
	all, err := reply.Slice()
	if err != nil || len(all) != 5 {
		return module.Lease{}, unavailable("acquire", fmt.Errorf("%d replies: %w", len(all), err))
	}
	held, _ := all[0].(int64)
	number, _ := all[1].(string)
	last, _ := all[2].(string)
	lost, _ := all[3].(string)
	if held == 0 {
		return module.Lease{}, nil
	}
	epoch, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return module.Lease{}, unavailable("acquire", err)
	}
	evicted, err := strconv.ParseInt(lost, 10, 64)
	if err != nil {
		return module.Lease{}, unavailable("acquire", err)
	}
	return module.Lease{Held: true, Epoch: epoch, Last: last, Evicted: evicted, Instructions: readInstructions(all[4])}, nil
}

// Release gives a lease back; see [module.DeliveryQueue]. One that a failover takes
// back would be renewed with its epoch, beside what was written with it before.
func (q *Queue) Release(ctx context.Context, host string, shard int, epoch int64) error {
	call := rediscommit.Call{Script: release, Keys: []string{q.keys.ShardState(shard)}, Args: []any{host, epoch}}
	return q.writer.DoDurably(ctx, call.Write())[0]
}

// heldPage is about how many members of what is held are read at once.
const heldPage = 500

// Restore returns what was kept of a shard; see [module.DeliveryQueue].
func (q *Queue) Restore(ctx context.Context, shard int) (module.Checkpointed, error) {
	c := module.Checkpointed{Held: map[string][]byte{}}
	err := q.do(ctx, "restore", func(ctx context.Context) error {
		finished, err := q.client.HGet(ctx, q.keys.ShardState(shard), stored.StateFinished).Bytes()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		c.Finished = finished
		return q.scanHeld(ctx, shard, c.Held)
	})
	if err != nil {
		return module.Checkpointed{}, err
	}
	return c, nil
}

func (q *Queue) scanHeld(ctx context.Context, shard int, held map[string][]byte) error {
	for cursor := uint64(0); ; {
		page, next, err := q.client.HScan(ctx, q.keys.ShardHeld(shard), cursor, "", heldPage).Result()
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(page); i += 2 {
			held[page[i]] = []byte(page[i+1])
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// Checkpoint keeps progress; see [module.DeliveryQueue]. A script takes several times
// as long as XDEL, and most checkpoints have nothing but entries that are done.
func (q *Queue) Checkpoint(ctx context.Context, progress map[int]module.Progress) map[int]error {
	shards := slices.Collect(maps.Keys(progress))
	calls, writes := make([]*rediscommit.Call, len(shards)), make([]rediscommit.Write, len(shards))
	for i, shard := range shards {
		if p := progress[shard]; p.Finished == nil && len(p.Held) == 0 && len(p.Answers) == 0 {
			writes[i] = q.dropDone(shard, p.Done)
		} else {
			calls[i] = q.checkpoint(shard, p)
			writes[i] = calls[i].Write()
		}
	}
	results := make(map[int]error, len(progress))
	for i, err := range q.writer.DoDurably(ctx, writes...) {
		if err == nil && calls[i] != nil {
			var kept bool
			if kept, err = calls[i].Reply.Bool(); err != nil || !kept {
				err = errors.Join(module.ErrFenced, err)
			}
		}
		results[shards[i]] = err
	}
	return results
}

// dropDone drops entries that are done.
func (q *Queue) dropDone(shard int, positions []string) rediscommit.Write {
	log := q.keys.ShardLog(shard)
	return rediscommit.Write{Key: log, Queue: func(ctx context.Context, to redis.Pipeliner) func() error {
		if len(positions) == 0 {
			return func() error { return nil }
		}
		return to.XDel(ctx, log, positions...).Err
	}}
}

func (q *Queue) checkpoint(shard int, p module.Progress) *rediscommit.Call {
	var removed, answers, set []any
	for member, value := range p.Held {
		if value == nil {
			removed = append(removed, member)
		} else {
			set = append(set, member, value)
		}
	}
	for id, answer := range p.Answers {
		answers = append(answers, stored.InstructionField+id, stored.AnswerField+id, answer)
	}
	done := make([]any, len(p.Done))
	for i, position := range p.Done {
		done[i] = position
	}
	args := []any{p.Epoch, q.number.Add(1), p.Finished != nil, p.Finished, len(done), len(removed), len(p.Answers)}
	return &rediscommit.Call{
		Script: checkpoint,
		Keys: []string{
			q.keys.ShardState(shard), q.keys.ShardHeld(shard), q.keys.ShardLog(shard), q.keys.ShardInstructions(shard),
		},
		Args: slices.Concat(args, done, removed, answers, set),
	}
}

// RemoveHeld removes what is kept of a pusher, by its digest, if it still is as it
// was read. It is for what no host can read: no owner knows of that or writes it.
func (q *Queue) RemoveHeld(ctx context.Context, shard int, pusher string, as []byte) (removed bool, err error) {
	call := rediscommit.Call{Script: removeHeld, Keys: []string{q.keys.ShardHeld(shard)}, Args: []any{pusher, as}}
	if err := q.writer.DoDurably(ctx, call.Write())[0]; err != nil {
		return false, err
	}
	return call.Reply.Bool()
}

// Watch tells of entries that are added; see [module.DeliveryQueue].
func (q *Queue) Watch(ctx context.Context, watching func(), appended func(shard int)) error {
	err := redisclient.Listen(ctx, q.client, q.keys.DeliveryChannel(), watching, func(message string) {
		if shard, err := strconv.Atoi(message); err == nil {
			appended(shard)
		}
	})
	return fmt.Errorf("%s: watch: %w", name, err)
}

// do runs commands that may be repeated.
func (q *Queue) do(ctx context.Context, doing string, commands func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	if err := commands(ctx); err != nil {
		return unavailable(doing, err)
	}
	return nil
}

func unavailable(doing string, err error) error {
	return module.Unavailable(fmt.Errorf("%s: %s: %w", name, doing, err))
}
