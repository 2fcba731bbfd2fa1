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
		err := q.do(ctx, "read backlogs", func(ctx context.Context) (err error) {
			var members []string
			var next uint64
			if members, next, err = q.client.ZScan(ctx, q.keys.ShardDue(shard), cursor, "", page).Result(); err == nil {
				cursor = next
				all, err = q.backlogs(ctx, shard, members)
			}
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

// backlogs reads backlogs. Members has targets and scores.
func (q *Queue) backlogs(ctx context.Context, shard int, members []string) ([]module.Backlog, error) {
	type reading struct {
		target  string
		score   int64
		entry   *redis.StringCmd
		length  *redis.IntCmd
		trouble *redis.StringCmd
	}
	var reads []reading
	_, err := q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := 0; i+1 < len(members); i += 2 {
			score, err := strconv.ParseFloat(members[i+1], 64)
			if err != nil {
				continue
			}
			key := q.keys.Backlog(shard, members[i])
			reads = append(reads, reading{
				members[i], int64(score), p.LIndex(ctx, key, 0), p.LLen(ctx, key), p.HGet(ctx, q.keys.ShardTrouble(shard), members[i]),
			})
		}
		return nil
	})
	var refusal redis.Error // of a value of another type
	if err != nil && !errors.As(err, &refusal) {
		return nil, err
	}
	all := make([]module.Backlog, len(reads))
	for i, r := range reads {
		b := module.Backlog{
			Claim: module.Claim{Target: module.Target{Shard: shard, Name: r.target}}, Waiting: int(r.length.Val()),
			First: notification(r.entry.Val()), Trouble: r.trouble.Val(), Due: time.UnixMicro(r.score),
		}
		if r.score%2 == 0 {
			b.Claim.Token = r.score
		}
		all[i] = b
	}
	return all, nil
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
