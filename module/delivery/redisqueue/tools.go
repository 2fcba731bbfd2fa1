package redisqueue

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
)

const page = 200 // backlogs that are read at once

// Backlogs implements [module.DeliveryQueue].
func (q *Queue) Backlogs(ctx context.Context, shard int, visit func(module.Backlog) bool) error {
	for cursor := uint64(0); ; {
		var all []module.Backlog
		err := q.do(ctx, "read backlogs", func(ctx context.Context) error {
			members, next, err := q.client.ZScan(ctx, q.keys.ShardDue(shard), cursor, "", page).Result()
			if err != nil {
				return err
			}
			cursor = next
			var targets []string
			for i := 0; i < len(members); i += 2 { // each target and its score
				targets = append(targets, members[i])
			}
			all, err = q.backlogs(ctx, shard, targets)
			return err
		})
		if err != nil {
			return err
		}
		for _, b := range all {
			if !visit(b) {
				return nil
			}
		}
		if cursor == 0 {
			return nil
		}
	}
}

// backlogs reads backlogs, except those that are removed meanwhile. An empty backlog with
// a due time has changed between the two reads, so both are read again.
func (q *Queue) backlogs(ctx context.Context, shard int, targets []string) (all []module.Backlog, err error) {
	const reads = 4
	for n := 1; len(targets) > 0; n++ {
		readings, err := q.readBacklogs(ctx, shard, targets)
		if err != nil {
			return nil, err
		}
		targets = nil
		for _, r := range readings {
			switch {
			case errors.Is(r.score.Err(), redis.Nil):
			case errors.Is(r.entry.Err(), redis.Nil) && n < reads:
				targets = append(targets, r.target.Name)
			default:
				all = append(all, r.backlog())
			}
		}
	}
	return all, nil
}

// reading is a backlog's replies.
type reading struct {
	target  module.Target
	score   *redis.FloatCmd
	entry   *redis.StringCmd
	length  *redis.IntCmd
	trouble *redis.StringCmd
}

func (q *Queue) readBacklogs(ctx context.Context, shard int, targets []string) ([]reading, error) {
	readings := make([]reading, len(targets))
	_, _ = q.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its error
		for i, target := range targets {
			backlog := q.keys.Backlog(shard, target)
			readings[i] = reading{
				target: module.Target{Shard: shard, Name: target}, score: p.ZScore(ctx, q.keys.ShardDue(shard), target),
				entry: p.LIndex(ctx, backlog, 0), length: p.LLen(ctx, backlog), trouble: p.HGet(ctx, q.keys.ShardTrouble(shard), target),
			}
		}
		return nil
	})
	for _, r := range readings {
		for _, reply := range []redis.Cmder{r.score, r.entry, r.length, r.trouble} {
			if err := reply.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
				return nil, err
			}
		}
	}
	return readings, nil
}

func (r reading) backlog() module.Backlog {
	score := int64(r.score.Val())
	b := module.Backlog{
		Claim: module.Claim{Target: r.target}, Waiting: int(r.length.Val()),
		First: notification(r.entry.Val()), Trouble: r.trouble.Val(), Due: time.UnixMicro(score),
	}
	if score%2 == 0 {
		b.Claim.Token = score
	}
	return b
}

// Retry makes unclaimed backlogs due at once, and returns their number.
func (q *Queue) Retry(ctx context.Context, shard int, targets []string) (int, error) {
	args := make([]any, len(targets))
	for i, target := range targets {
		args[i] = target
	}
	return q.number(ctx, retry, []string{q.keys.ShardDue(shard)}, args...)
}

// Flush removes a backlog, claimed or not, and returns how many notifications it had.
func (q *Queue) Flush(ctx context.Context, t module.Target) (dropped int, err error) {
	return q.number(ctx, drop, q.allKeys(t), t.Name, "")
}

// Hold makes hosts send nothing to a gateway, until [Queue.OpenGateway].
func (q *Queue) Hold(ctx context.Context, gateway string) error {
	return q.do(ctx, "hold a gateway", func(ctx context.Context) error {
		return q.client.HSetNX(ctx, q.keys.DeliveryGateways(), gateway, time.Now().UnixMilli()).Err()
	})
}

// OpenGateway ends [Queue.Hold], and reports whether the gateway was held.
func (q *Queue) OpenGateway(ctx context.Context, gateway string) (wasHeld bool, err error) {
	err = q.do(ctx, "open a gateway", func(ctx context.Context) error {
		n, err := q.client.HDel(ctx, q.keys.DeliveryGateways(), gateway).Result()
		wasHeld = n > 0
		return err
	})
	return wasHeld, err
}

// Held returns the held gateways, and since when.
func (q *Queue) Held(ctx context.Context) (map[string]time.Time, error) {
	held := map[string]time.Time{}
	err := q.do(ctx, "read held gateways", func(ctx context.Context) error {
		all, err := q.client.HGetAll(ctx, q.keys.DeliveryGateways()).Result()
		for gateway, text := range all {
			ms, _ := strconv.ParseInt(text, 10, 64)
			held[gateway] = time.UnixMilli(ms)
		}
		return err
	})
	return held, err
}
