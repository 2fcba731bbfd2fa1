package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

type found struct {
	shard  int
	target string
	late   time.Duration
}

// Claim implements [module.DeliveryQueue]. It finds due backlogs of all shards in one
// round trip, and claims in another.
func (q *Queue) Claim(ctx context.Context, limit int, lease time.Duration) (module.Claimed, error) {
	began, failing := time.Now(), map[int]error{}
	all, more, err := q.findDue(ctx, limit, failing)
	if err != nil {
		return module.Claimed{}, err
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(b.late, a.late) })
	claimed := module.Claimed{More: more || len(all) > limit}
	if len(all) > 0 {
		claimed.Oldest = all[0].late
	}
	byShard := map[int][]string{}
	for _, f := range all[:min(limit, len(all))] {
		byShard[f.shard] = append(byShard[f.shard], f.target)
	}
	claimed.Backlogs = q.claimAll(ctx, byShard, lease, failing)
	claimed.Oldest = max(claimed.Oldest, q.looks.note(began, failing))
	if len(claimed.Backlogs) == 0 {
		for _, err := range failing {
			return claimed, err
		}
	}
	return claimed, nil
}

// looks has the time of the last look at each shard that had no error.
type looks struct {
	mu   sync.Mutex
	good []time.Time // by shard
}

func (l *looks) open(shards int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.good = slices.Repeat([]time.Time{time.Now()}, shards)
}

// note adds a look, and returns the longest time without a good one.
func (l *looks) note(began time.Time, failing map[int]error) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for shard, at := range l.good {
		if failing[shard] == nil {
			l.good[shard] = began
		} else {
			longest = max(longest, began.Sub(at))
		}
	}
	return longest
}

func (q *Queue) findDue(ctx context.Context, limit int, failing map[int]error) (all []found, more bool, err error) {
	shards := int(q.shards.Load())
	if shards == 0 {
		return nil, false, unavailable("claim", errors.New("it was not opened"))
	}
	perShard := min(limit, max(8, 4*limit/shards)) + 1
	calls := make([]*redisclient.Call, shards)
	for shard := range shards {
		calls[shard] = due.Call([]string{q.keys.ShardDue(shard)}, perShard)
	}
	for shard, failed := range q.run(ctx, calls...) {
		var in []found
		if failed == nil {
			in, failed = readDue(shard, calls[shard].Reply)
		}
		if failed != nil { // the other shards go on
			failing[shard] = failed
		}
		all, more = append(all, in...), more || len(in) == perShard
	}
	return all, more, nil
}

func readDue(shard int, reply *redis.Cmd) ([]found, error) {
	parts, err := reply.Slice()
	if err != nil || len(parts) != 2 {
		return nil, unavailable("claim", fmt.Errorf("%d replies: %w", len(parts), err))
	}
	text, _ := parts[0].(string)
	now, _ := strconv.ParseInt(text, 10, 64)
	pairs, _ := parts[1].([]any)
	var all []found
	for i := 0; i+1 < len(pairs); i += 2 {
		target, _ := pairs[i].(string)
		score, _ := pairs[i+1].(string)
		at, err := strconv.ParseFloat(score, 64)
		if err != nil {
			continue
		}
		all = append(all, found{shard, target, max(0, time.Duration(now-int64(at))*time.Microsecond)})
	}
	return all, nil
}

func (q *Queue) claimAll(ctx context.Context, byShard map[int][]string, lease time.Duration, failing map[int]error) (all []module.Backlog) {
	var shards []int
	var calls []*redisclient.Call
	for shard, targets := range byShard {
		keys, args := []string{q.keys.ShardDue(shard), q.keys.ShardTrouble(shard)}, []any{microseconds(lease)}
		for _, target := range targets {
			keys, args = append(keys, q.keys.Backlog(shard, target)), append(args, target)
		}
		shards, calls = append(shards, shard), append(calls, claim.Call(keys, args...))
	}
	for i, failed := range q.run(ctx, calls...) {
		if failed != nil {
			failing[shards[i]] = failed
			continue
		}
		results, _ := calls[i].Reply.Slice()
		for n, target := range byShard[shards[i]] {
			if n < len(results) {
				if b, ok := readClaim(module.Target{Shard: shards[i], Name: target}, results[n]); ok {
					all = append(all, b)
				}
			}
		}
	}
	return all
}

// readClaim reads the reply of claimScript. Ok is false for an unclaimed backlog.
func readClaim(target module.Target, reply any) (b module.Backlog, ok bool) {
	parts, _ := reply.([]any)
	if len(parts) != 4 {
		return b, false
	}
	token, _ := parts[0].(int64)
	waiting, _ := parts[1].(int64)
	entry, _ := parts[2].(string)
	b.Trouble, _ = parts[3].(string)
	b.Claim, b.Waiting, b.Due = module.Claim{Target: target, Token: token}, int(waiting), time.UnixMicro(token)
	b.First = notification(entry)
	return b, token != 0
}

// notification reads an entry, without its text. For an invalid entry, it returns only
// the ID, with which it can be removed.
func notification(entry string) module.Notification {
	e, found := stored.ReadBacklogEntry(entry)
	if !found {
		return module.Notification{ID: entry[min(1, len(entry)):min(17, len(entry))]}
	}
	return module.Notification{ID: e.ID, Priority: module.Priority(e.Priority), Room: e.Room, Meta: e.Meta}
}

// Read implements [module.DeliveryQueue].
func (q *Queue) Read(ctx context.Context, c module.Claim, limit int) (all []module.Notification, err error) {
	err = q.do(ctx, "read", func(ctx context.Context) error {
		all = nil
		entries, err := q.client.LRange(ctx, q.keys.Backlog(c.Target.Shard, c.Target.Name), 0, int64(limit-1)).Result()
		if err != nil || len(entries) == 0 {
			return err
		}
		ids := make([]string, len(entries))
		for i, entry := range entries {
			n := notification(entry)
			ids[i], all = n.ID, append(all, n)
		}
		texts, err := q.client.HMGet(ctx, q.keys.Texts(c.Target.Shard, c.Target.Name), ids...).Result()
		for i, text := range texts {
			all[i].Text, _ = text.(string)
		}
		return err
	})
	return all, err
}

// Postpone implements [module.DeliveryQueue].
func (q *Queue) Postpone(ctx context.Context, c module.Claim, delay time.Duration, trouble *string) error {
	mode, text := "keep", ""
	if trouble != nil {
		mode, text = "set", *trouble
	}
	keys := []string{q.keys.ShardDue(c.Target.Shard), q.keys.ShardTrouble(c.Target.Shard)}
	done, err := q.number(ctx, postpone, keys, c.Target.Name, c.Token, max(0, delay.Microseconds()), mode, text)
	if err == nil && done == 0 {
		err = module.ErrFenced
	}
	return err
}

// Renew implements [module.DeliveryQueue].
func (q *Queue) Renew(ctx context.Context, c module.Claim, by time.Duration) (module.Claim, error) {
	next := c
	next.Token += max(2, by.Microseconds()/2*2)
	done, err := q.number(ctx, renew, []string{q.keys.ShardDue(c.Target.Shard)}, c.Target.Name, c.Token, next.Token)
	switch {
	case err != nil:
		return c, err
	case done == 0:
		return c, module.ErrFenced
	}
	return next, nil
}

// Drop implements [module.DeliveryQueue].
func (q *Queue) Drop(ctx context.Context, c module.Claim) (dropped int, err error) {
	return q.number(ctx, drop, q.allKeys(c.Target), c.Target.Name, c.Token)
}

// allKeys returns the keys with parts of a backlog.
func (q *Queue) allKeys(t module.Target) []string {
	return []string{
		q.keys.ShardDue(t.Shard), q.keys.Backlog(t.Shard, t.Name), q.keys.Texts(t.Shard, t.Name),
		q.keys.ShardTrouble(t.Shard), q.keys.ShardBytes(t.Shard), q.keys.Sent(t.Shard, t.Name),
	}
}
