package redisqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/stored"
)

// Append adds entries to logs; see [module.DeliveryQueue].
//
// An entry that was added before gets into the log again. It is Read that leaves
// it out: so there is nothing to compare when an entry is added, and a lost answer
// does no harm.
func (q *Queue) Append(ctx context.Context, key string, window time.Duration, entries map[int][]byte) error {
	writes := make([]rediscommit.Write, 0, len(entries))
	added := make([]addition, 0, len(entries))
	for shard, data := range entries {
		added = append(added, addition{shard: shard})
		add, log := &added[len(added)-1], q.keys.ShardLog(shard)
		values := []any{stored.LogKey, stored.SeenMember(key), stored.LogWindow, window.Milliseconds(), stored.LogData, data}
		writes = append(writes, rediscommit.Write{Key: log, Queue: func(ctx context.Context, to redis.Pipeliner) func() error {
			position := to.XAdd(ctx, &redis.XAddArgs{Stream: log, Values: values})
			add.length = to.XLen(ctx, log)
			to.Publish(ctx, q.keys.DeliveryChannel(), shard) // a hint, which may get lost
			return position.Err
		}})
	}
	if err := errors.Join(q.writer.DoDurably(ctx, writes...)...); err != nil {
		return err
	}
	q.evict(ctx, added)
	return nil
}

// addition is an entry that was added to a shard, with how long its log is then.
type addition struct {
	shard  int
	length *redis.IntCmd
}

// evict drops the oldest entries of logs that are too long, and some more, so that
// not every entry has to. Where that fails the next one will.
func (q *Queue) evict(ctx context.Context, added []addition) {
	var writes []rediscommit.Write
	stay := q.logEntries - q.logEntries/20
	for _, add := range added {
		if add.length.Val() > int64(q.logEntries) {
			call := rediscommit.Call{Script: evict, Keys: []string{q.keys.ShardLog(add.shard), q.keys.ShardState(add.shard)}, Args: []any{stay}}
			writes = append(writes, call.Write())
		}
	}
	if len(writes) > 0 {
		q.writer.Do(ctx, writes...)
	}
}

// Read returns entries of a log; see [module.DeliveryQueue]. It drops those that
// were added before.
func (q *Queue) Read(ctx context.Context, shard int, after string, limit int) (entries []module.LogEntry, err error) {
	err = q.do(ctx, "read", func(ctx context.Context) error {
		entries = entries[:0]
		for position := after; len(entries) < limit; {
			wanted := limit - len(entries)
			page, err := q.readPage(ctx, shard, position, wanted)
			if err != nil || len(page) == 0 {
				return err
			}
			position = page[len(page)-1].Position
			first, err := q.onlyFirst(ctx, shard, page)
			if err != nil {
				return err
			}
			entries = append(entries, first...)
			if len(page) < wanted {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// readEntry is an entry as it was read.
type readEntry struct {
	module.LogEntry
	key    string        // as [stored.SeenMember]
	window time.Duration // in which another entry of the key is left out
	order  int64         // grows with the position
}

func (q *Queue) readPage(ctx context.Context, shard int, after string, limit int) ([]readEntry, error) {
	start := "-"
	if after != "" {
		start = "(" + after
	}
	messages, err := q.client.XRangeN(ctx, q.keys.ShardLog(shard), start, "+", int64(limit)).Result()
	if err != nil {
		return nil, err
	}
	entries := make([]readEntry, len(messages))
	for i, m := range messages {
		if entries[i], err = readMessage(m); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// orderShift leaves room, behind the milliseconds, for the second part of a
// position. Both together are exact in a score, which is a float64, until 2039.
const orderShift = 12

func readMessage(m redis.XMessage) (readEntry, error) {
	milliseconds, number, err := readPosition(m.ID)
	if err != nil {
		return readEntry{}, err
	}
	data, _ := m.Values[stored.LogData].(string)
	key, _ := m.Values[stored.LogKey].(string)
	text, _ := m.Values[stored.LogWindow].(string)
	window, _ := strconv.ParseInt(text, 10, 64)
	return readEntry{
		LogEntry: module.LogEntry{Position: m.ID, Added: time.UnixMilli(milliseconds), Data: data},
		key:      key, window: time.Duration(window) * time.Millisecond,
		order: milliseconds<<orderShift + min(number, 1<<orderShift-1),
	}, nil
}

// mostSeen is how many keys of entries a shard remembers. It forgets the oldest
// before the window is over where more than a hundred come in a second.
const mostSeen = 100_000

// onlyFirst returns the entries whose key no other entry had before, in the
// window, and drops the others. What was seen is kept with the order of the entry
// that had it: so an entry is recognized when it is read again, by another owner
// for example.
func (q *Queue) onlyFirst(ctx context.Context, shard int, page []readEntry) (first []module.LogEntry, err error) {
	known, err := q.see(ctx, shard, page)
	if err != nil {
		return nil, err
	}
	var again []string
	var moved []redis.Z
	for _, e := range page {
		before := known[e.key]
		if before != e.order && e.window > time.Duration(e.order-before)>>orderShift*time.Millisecond {
			again = append(again, e.Position)
			continue
		}
		if before != e.order {
			known[e.key] = e.order
			moved = append(moved, redis.Z{Score: float64(e.order), Member: e.key})
		}
		first = append(first, e.LogEntry)
	}
	if len(moved) > 0 {
		if err := q.client.ZAdd(ctx, q.keys.ShardSeen(shard), moved...).Err(); err != nil {
			return nil, err
		}
	}
	if len(again) > 0 {
		err = q.client.XDel(ctx, q.keys.ShardLog(shard), again...).Err()
	}
	return first, err
}

// see remembers the keys of entries, unless they are already, and returns the order
// of the entry that each was remembered for. It forgets those that are too old
// beside these.
func (q *Queue) see(ctx context.Context, shard int, page []readEntry) (known map[string]int64, err error) {
	seen, window := q.keys.ShardSeen(shard), time.Duration(0)
	var members []redis.Z
	var keys []string
	known = make(map[string]int64, len(page))
	for _, e := range page {
		window = max(window, e.window)
		if _, twice := known[e.key]; !twice {
			known[e.key] = e.order
			members, keys = append(members, redis.Z{Score: float64(e.order), Member: e.key}), append(keys, e.key)
		}
	}
	oldest := (page[0].Added.UnixMilli() - window.Milliseconds()) << orderShift
	var added *redis.IntCmd
	_, err = q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZRemRangeByScore(ctx, seen, "-inf", strconv.FormatInt(oldest, 10))
		added = p.ZAddNX(ctx, seen, members...)
		p.ZRemRangeByRank(ctx, seen, 0, -1-mostSeen)
		p.PExpire(ctx, seen, window+time.Second)
		return nil
	})
	if err != nil || added.Val() == int64(len(members)) {
		return known, err
	}
	orders, err := q.client.ZMScore(ctx, seen, keys...).Result()
	if err != nil {
		return nil, err
	}
	for i, order := range orders {
		known[keys[i]] = int64(order)
	}
	return known, nil
}

func readPosition(position string) (milliseconds, number int64, err error) {
	if milliseconds, number, err = stored.ReadPosition(position); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return milliseconds, number, err
}
