package redisqueue

import (
	"context"
	"fmt"
	"slices"
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
	return q.scanAll(ctx, q.keys.ShardFirst(shard), func(targets, _ []string) (more bool, err error) {
		all, err := q.backlogs(ctx, shard, targets)
		for _, b := range all {
			if !visit(b) {
				return false, nil
			}
		}
		return true, err
	})
}

// scanAll reads a hash in pages, and calls visit for each page until more is false.
func (q *Queue) scanAll(ctx context.Context, key string, visit func(fields, values []string) (more bool, err error)) error {
	for cursor := uint64(0); ; {
		fields, values, next, err := q.scan(ctx, key, cursor)
		if err != nil {
			return err
		}
		if more, err := visit(fields, values); err != nil || !more || next == 0 {
			return err
		}
		cursor = next
	}
}

// scan returns some fields of a hash, and the cursor of the next ones, 0 for none.
func (q *Queue) scan(ctx context.Context, key string, cursor uint64) (fields, values []string, next uint64, err error) {
	var scanned *redis.ScanCmd
	if err := q.read(ctx, command(key, &scanned, func(ctx context.Context, to redisclient.Sender) *redis.ScanCmd {
		return to.HScan(ctx, key, cursor, "", page)
	})); err != nil {
		return nil, nil, 0, err
	}
	pairs, next := scanned.Val()
	for i := 0; i+1 < len(pairs); i += 2 {
		fields, values = append(fields, pairs[i]), append(values, pairs[i+1])
	}
	return fields, values, next, nil
}

// backlogs reads the backlogs that exist. A backlog that its gate does not list has
// probably changed during the reads, so it is read again.
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

// readFields returns a command that reads fields of a hash and sets the reply.
func readFields(hash string, reply **redis.SliceCmd, fields []string) *redisclient.Command {
	return command(hash, reply, func(ctx context.Context, to redisclient.Sender) *redis.SliceCmd {
		return to.HMGet(ctx, hash, fields...)
	})
}

// reading is what is stored about a backlog.
type reading struct {
	target  module.Target
	record  string
	score   int64 // 0 if it is not listed
	more    int64
	trouble string
}

// readBacklogs reads backlogs in two round trips: first the records, which name the gates,
// then the due times that the gates have.
func (q *Queue) readBacklogs(ctx context.Context, shard int, targets []string) (all []reading, err error) {
	first, trouble := q.keys.ShardFirst(shard), q.keys.ShardTrouble(shard)
	var records, troubles *redis.SliceCmd
	err = q.read(ctx, readFields(first, &records, targets), readFields(trouble, &troubles, targets))
	if err = unlessWrongType(err); err != nil {
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
	if err := unlessWrongType(q.read(ctx, commands...)); err != nil {
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
	Due      int       // due backlogs at the time of the call
	Earliest time.Time // due time of a backlog, or end of a claim
}

// Gates returns the gates of a shard, without reading their backlogs.
func (q *Queue) Gates(ctx context.Context, shard int, now time.Time) (all []Gate, err error) {
	key := q.keys.ShardGates(shard)
	var names *redis.StringSliceCmd
	if err := unlessWrongType(q.read(ctx, command(key, &names, func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
		return to.ZRange(ctx, key, 0, -1)
	}))); err != nil {
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
	if err := unlessWrongType(q.read(ctx, commands...)); err != nil {
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
	return unlessWrongType(q.scanAll(ctx, q.keys.ShardTrouble(shard), func(targets, troubles []string) (more bool, err error) {
		for i, target := range targets {
			if b := backlog(module.Claim{Target: module.Target{Name: target}}, "", troubles[i]); b.Trouble.Text != "" {
				visit(b.Trouble)
			}
		}
		return true, nil
	}))
}

// Retry makes unclaimed backlogs of a gate due at once, and returns their number.
func (q *Queue) Retry(ctx context.Context, shard int, gate string, targets []string) (int, error) {
	args := []any{gate}
	for _, target := range targets {
		args = append(args, target)
	}
	return q.number(ctx, retry, []string{q.keys.ShardGates(shard), q.keys.Due(shard, gate)}, args...)
}

// Hasten makes backlogs of a gate due that would otherwise be due only after longest, and
// returns their number.
func (q *Queue) Hasten(ctx context.Context, shard int, gate string, longest time.Duration) (hastened int, err error) {
	keys := []string{q.keys.ShardGates(shard), q.keys.Due(shard, gate)}
	for {
		n, err := q.number(ctx, hasten, keys, gate, longest.Microseconds(), page)
		if hastened += n; err != nil || n < page {
			return hastened, err
		}
	}
}

// StrayTexts returns those fields of a shard's texts whose notification is in no backlog. It
// returns none if a key has another type.
func (q *Queue) StrayTexts(ctx context.Context, shard int, fields []string) (stray []string, err error) {
	if len(fields) == 0 {
		return nil, nil
	}
	first, texts := q.keys.ShardFirst(shard), q.keys.ShardTexts(shard)
	targets := make([]string, len(fields))
	for i, field := range fields {
		targets[i], _ = stored.ReadTextField(field)
	}
	slices.Sort(targets)
	targets = slices.Compact(targets)
	lists, commands := make([]*redis.StringSliceCmd, len(targets)), make([]*redisclient.Command, len(targets))
	for i, target := range targets {
		key := q.keys.More(shard, target)
		commands[i] = command(key, &lists[i], func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
			return to.LRange(ctx, key, 0, -1)
		})
	}
	if err := q.read(ctx, commands...); err != nil {
		return nil, unlessWrongType(err)
	}
	// Read after the lists, so that a notification that becomes the first one is not missed.
	var records *redis.SliceCmd
	if err := q.read(ctx, readFields(first, &records, targets)); err != nil {
		return nil, unlessWrongType(err)
	}
	waits := map[string]bool{}
	for i, record := range textsIn(records.Val()) {
		_, entry, _ := stored.ReadFirstEntry(record)
		for _, entry := range append(lists[i].Val(), entry) {
			waits[stored.TextField(targets[i], notification(entry).ID)] = true
		}
	}
	return q.existing(ctx, texts, slices.DeleteFunc(slices.Clone(fields), func(field string) bool { return waits[field] }))
}

// existing returns those fields of a hash that exist.
func (q *Queue) existing(ctx context.Context, hash string, fields []string) (all []string, err error) {
	exist, commands := make([]*redis.BoolCmd, len(fields)), make([]*redisclient.Command, len(fields))
	for i, field := range fields {
		commands[i] = command(hash, &exist[i], func(ctx context.Context, to redisclient.Sender) *redis.BoolCmd {
			return to.HExists(ctx, hash, field)
		})
	}
	if err := q.read(ctx, commands...); err != nil {
		return nil, unlessWrongType(err)
	}
	for i, field := range fields {
		if exist[i].Val() {
			all = append(all, field)
		}
	}
	return all, nil
}

// DropTexts removes those texts whose notification is in no backlog, and returns their
// number.
func (q *Queue) DropTexts(ctx context.Context, shard int, fields []string) (dropped int, err error) {
	for part := range slices.Chunk(fields, page) {
		keys, args := []string{q.keys.ShardFirst(shard), q.keys.ShardTexts(shard)}, make([]any, 0, 2*len(part))
		for _, field := range part {
			target, id := stored.ReadTextField(field)
			keys, args = append(keys, q.keys.More(shard, target)), append(args, target, id)
		}
		n, err := q.number(ctx, dropTexts, keys, args...)
		if dropped += n; err != nil {
			return dropped, err
		}
	}
	return dropped, nil
}

const (
	moveLease = time.Minute
	unlimited = 1 << 30 // notifications and bytes; hosts apply their limits later
)

// Move moves a user's backlog to another shard, without unreadable notifications, and
// returns how many it moved. It fails with [module.ErrFenced] if a host has claimed the
// backlog. If it fails in between, a repeated call moves the rest.
func (q *Queue) Move(ctx context.Context, b module.Backlog, user string, to int) (moved int, err error) {
	c := b.Claim
	token, err := q.number(ctx, take, []string{q.keys.Due(c.Target.Shard, c.Gate)}, c.Target.Name, moveLease.Microseconds())
	if err != nil {
		return 0, err
	}
	c.Token = int64(token)
	defer func() {
		if err != nil {
			_ = q.Postpone(context.WithoutCancel(ctx), c, c.Gate, 0, nil) // or the claim lapses
		}
	}()
	for {
		all, err := q.Read(ctx, c, 1)
		if err != nil || len(all) == 0 {
			return moved, err
		}
		if n := all[0]; n.Priority != 0 {
			batch := module.DeliveryBatch{
				Shard: to, Key: fmt.Sprint("moved from ", c.Target, n.ID), Window: time.Hour,
				MaxBacklog: unlimited, MaxUserBytes: unlimited,
				Additions: []module.Addition{{Target: c.Target.Name, Gate: c.Gate, User: user, Notification: n}},
			}
			if err := q.Enqueue(ctx, []module.DeliveryBatch{batch})[0].Err; err != nil {
				return moved, err
			}
			moved++
		}
		if _, err := q.Complete(ctx, c, all[0].ID, module.Trouble{}, ""); err != nil {
			return moved, err
		}
	}
}

// DropShard removes what a shard without backlogs still has, except texts and what expires.
func (q *Queue) DropShard(ctx context.Context, shard int) error {
	gates, err := q.Gates(ctx, shard, time.Time{})
	keys := []string{
		q.keys.ShardFirst(shard), q.keys.ShardGates(shard), q.keys.ShardTrouble(shard), q.keys.ShardBytes(shard),
	}
	for _, gate := range gates {
		keys = append(keys, q.keys.Due(shard, gate.Name))
	}
	if err == nil {
		_, err = q.number(ctx, dropShard, keys)
	}
	return err
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
