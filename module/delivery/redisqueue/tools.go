package redisqueue

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

const page = 200 // backlogs that are read at once

// Backlogs implements [module.DeliveryQueue]. The due time of a backlog that is not listed is
// the zero time.
func (q *Queue) Backlogs(ctx context.Context, shard int, visit func(module.Backlog) bool) error {
	isOver := false
	return q.scanFirst(ctx, shard, func(targets, _ []string) error {
		if isOver {
			return nil
		}
		all, err := q.backlogs(ctx, shard, targets)
		for _, b := range all {
			isOver = isOver || !visit(b)
			if isOver {
				break
			}
		}
		return err
	})
}

// scanFirst calls visit for some backlogs of a shard after the other.
func (q *Queue) scanFirst(ctx context.Context, shard int, visit func(targets, gates []string) error) error {
	key := q.keys.ShardFirst(shard)
	for cursor := uint64(0); ; {
		var scanned *redis.ScanCmd
		if err := q.read(ctx, command(key, &scanned, func(ctx context.Context, to redisclient.Sender) *redis.ScanCmd {
			return to.HScan(ctx, key, cursor, "", page)
		})); err != nil {
			return err
		}
		pairs, next := scanned.Val()
		var targets, gates []string
		for i := 0; i+1 < len(pairs); i += 2 { // each target and its record
			gate, _, _ := stored.ReadFirstEntry(pairs[i+1])
			targets, gates = append(targets, pairs[i]), append(gates, gate)
		}
		if err := visit(targets, gates); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// backlogs reads backlogs, except those that are removed meanwhile. A backlog that is not
// listed has changed between the two reads, so both are read again.
func (q *Queue) backlogs(ctx context.Context, shard int, targets []string) (all []module.Backlog, err error) {
	const reads = 4
	for n := 1; len(targets) > 0; n++ {
		readings, err := q.readBacklogs(ctx, shard, targets)
		if err != nil {
			return nil, err
		}
		targets = nil
		for _, r := range readings {
			if r.score == 0 && n < reads {
				targets = append(targets, r.target.Name)
			} else {
				all = append(all, r.backlog())
			}
		}
	}
	return all, nil
}

// reading is what is stored about a backlog.
type reading struct {
	target  module.Target
	record  string
	score   int64 // 0 if it is not listed
	more    int64
	trouble string
}

// readBacklogs reads backlogs in two round trips: the records have the gates, by which the
// backlogs are listed.
func (q *Queue) readBacklogs(ctx context.Context, shard int, targets []string) (all []reading, err error) {
	first, trouble := q.keys.ShardFirst(shard), q.keys.ShardTrouble(shard)
	var records, troubles *redis.SliceCmd
	if err := q.read(ctx, command(first, &records, func(ctx context.Context, to redisclient.Sender) *redis.SliceCmd {
		return to.HMGet(ctx, first, targets...)
	}), command(trouble, &troubles, func(ctx context.Context, to redisclient.Sender) *redis.SliceCmd {
		return to.HMGet(ctx, trouble, targets...)
	})); err != nil && !isWrongType(err) {
		return nil, err
	}
	scores, lengths := make([]*redis.FloatCmd, len(targets)), make([]*redis.IntCmd, len(targets))
	var commands []*redisclient.Command
	found, known := textsIn(records.Val()), textsIn(troubles.Val())
	for i, target := range targets {
		gate, _, _ := stored.ReadFirstEntry(found[i])
		due, more := q.keys.Due(shard, gate), q.keys.More(shard, target)
		commands = append(commands, command(due, &scores[i], func(ctx context.Context, to redisclient.Sender) *redis.FloatCmd {
			return to.ZScore(ctx, due, target)
		}), command(more, &lengths[i], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd { return to.LLen(ctx, more) }))
	}
	if err := q.tryRead(ctx, commands...); err != nil {
		return nil, err
	}
	for i, target := range targets {
		if found[i] != "" {
			r := reading{module.Target{Shard: shard, Name: target}, found[i], int64(scores[i].Val()), lengths[i].Val(), ""}
			if i < len(known) {
				r.trouble = known[i]
			}
			all = append(all, r)
		}
	}
	return all, nil
}

func (r reading) backlog() module.Backlog {
	gate, _, _ := stored.ReadFirstEntry(r.record)
	b := backlog(module.Claim{Target: r.target, Gate: gate}, r.record, r.trouble)
	b.Waiting = 1 + int(r.more)
	if r.score > 0 {
		b.Due = time.UnixMicro(r.score)
	}
	if r.score%2 == 0 {
		b.Claim.Token = r.score
	}
	return b
}

// Gate is a gate with backlogs in a shard.
type Gate struct {
	Name     string
	Backlogs int
	Due      int       // backlogs at the time of the call
	Earliest time.Time // due time of a backlog, or end of a claim
}

// Gates returns the gates of a shard, without reading their backlogs.
func (q *Queue) Gates(ctx context.Context, shard int, now time.Time) (all []Gate, err error) {
	key := q.keys.ShardGates(shard)
	var names *redis.StringSliceCmd
	if err := q.tryRead(ctx, command(key, &names, func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
		return to.ZRange(ctx, key, 0, -1)
	})); err != nil {
		return nil, err
	}
	n := len(names.Val())
	lengths, due, first := make([]*redis.IntCmd, n), make([]*redis.IntCmd, n), make([]*redis.ZSliceCmd, n)
	var commands []*redisclient.Command
	for i, name := range names.Val() {
		key := q.keys.Due(shard, name)
		commands = append(commands, command(key, &lengths[i], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd {
			return to.ZCard(ctx, key)
		}), command(key, &due[i], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd {
			return to.ZCount(ctx, key, "-inf", strconv.FormatInt(now.UnixMicro(), 10))
		}), command(key, &first[i], func(ctx context.Context, to redisclient.Sender) *redis.ZSliceCmd {
			return to.ZRangeWithScores(ctx, key, 0, 0)
		}))
	}
	if err := q.tryRead(ctx, commands...); err != nil {
		return nil, err
	}
	for i, name := range names.Val() {
		for _, z := range first[i].Val() {
			all = append(all, Gate{name, int(lengths[i].Val()), int(due[i].Val()), time.UnixMicro(int64(z.Score))})
		}
	}
	return all, nil
}

// Troubles calls visit for the failing backlogs of a shard.
func (q *Queue) Troubles(ctx context.Context, shard int, visit func(module.Trouble)) error {
	key := q.keys.ShardTrouble(shard)
	for cursor := uint64(0); ; {
		var scanned *redis.ScanCmd
		if err := q.tryRead(ctx, command(key, &scanned, func(ctx context.Context, to redisclient.Sender) *redis.ScanCmd {
			return to.HScan(ctx, key, cursor, "", page)
		})); err != nil {
			return err
		}
		pairs, next := scanned.Val()
		for i := 0; i+1 < len(pairs); i += 2 { // each target and its trouble
			if b := backlog(module.Claim{Target: module.Target{Name: pairs[i]}}, "", pairs[i+1]); b.Trouble.Text != "" {
				visit(b.Trouble)
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// Retry makes unclaimed backlogs of a gate due at once, and returns their number.
func (q *Queue) Retry(ctx context.Context, shard int, gate string, targets []string) (int, error) {
	args := []any{gate}
	for _, target := range targets {
		args = append(args, target)
	}
	return q.number(ctx, retry, []string{q.keys.ShardGates(shard), q.keys.Due(shard, gate)}, args...)
}

// Flush removes a backlog, claimed or not, and returns how many notifications it had.
func (q *Queue) Flush(ctx context.Context, c module.Claim) (dropped int, err error) {
	return q.number(ctx, drop, q.dropKeys(c), c.Target.Name, "", c.Gate)
}

// Hold makes hosts send nothing to a gateway, until [Queue.OpenGateway].
func (q *Queue) Hold(ctx context.Context, gateway string) error {
	key := q.keys.DeliveryGateways()
	var set *redis.BoolCmd
	return q.writer.Do(ctx, command(key, &set, func(ctx context.Context, to redisclient.Sender) *redis.BoolCmd {
		return to.HSetNX(ctx, key, gateway, time.Now().UnixMilli())
	}))[0]
}

// OpenGateway ends [Queue.Hold], and reports whether the gateway was held.
func (q *Queue) OpenGateway(ctx context.Context, gateway string) (wasHeld bool, err error) {
	key := q.keys.DeliveryGateways()
	var removed *redis.IntCmd
	if err := q.writer.Do(ctx, command(key, &removed, func(ctx context.Context, to redisclient.Sender) *redis.IntCmd {
		return to.HDel(ctx, key, gateway)
	}))[0]; err != nil {
		return false, err
	}
	return removed.Val() > 0, nil
}

// Held returns the held gateways, and since when.
func (q *Queue) Held(ctx context.Context) (map[string]time.Time, error) {
	key := q.keys.DeliveryGateways()
	var all *redis.MapStringStringCmd
	if err := q.read(ctx, command(key, &all, func(ctx context.Context, to redisclient.Sender) *redis.MapStringStringCmd {
		return to.HGetAll(ctx, key)
	})); err != nil {
		return nil, err
	}
	held := map[string]time.Time{}
	for gateway, text := range all.Val() {
		ms, _ := strconv.ParseInt(text, 10, 64)
		held[gateway] = time.UnixMilli(ms)
	}
	return held, nil
}
