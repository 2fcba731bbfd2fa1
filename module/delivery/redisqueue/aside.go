package redisqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/stored"
)

// isWrongType reports whether Redis refused a command because a key has another type. A
// script's error does not begin with the code.
func isWrongType(err error) bool {
	var refusal redis.Error
	return errors.As(err, &refusal) && strings.Contains(refusal.Error(), "WRONGTYPE")
}

// typeOf returns the type of a kind of key, or "" for keys that are not renamed.
func typeOf(kind stored.KeyKind) string {
	switch kind {
	case stored.ShardGatesKey, stored.DueKey:
		return "zset"
	case stored.ShardFirstKey, stored.ShardTextsKey, stored.ShardTroubleKey, stored.ShardBytesKey:
		return "hash"
	case stored.MoreKey:
		return "list"
	}
	return ""
}

// putAside renames those of a shard's keys that have another type than hosts give them, so
// that the shard goes on, and lists its backlogs again. Pushctl check names the renamed
// keys.
func (q *Queue) putAside(ctx context.Context, names []string) (done bool) {
	var keys []string
	var types []any
	shard, suffix := 0, strconv.FormatInt(time.Now().UnixMicro(), 36)
	for _, key := range names {
		k := q.keys.Parse(key)
		if want := typeOf(k.Kind); want != "" {
			shard, types = k.Shard, append(types, want)
			keys = append(keys, key, q.keys.Aside(shard, fmt.Sprint(suffix, "-", len(keys)/2)))
		}
	}
	call := putAside.Call(keys, types...)
	err := q.writer.Do(ctx, call.Command())[0]
	if n, _ := call.Reply.Int(); err == nil && n > 0 {
		q.observer.Report(observe.DeliveryDelayed, fmt.Errorf("%s: %d keys of shard %d have another type, renamed to %s*",
			name, n, shard, q.keys.Aside(shard, suffix)))
		err = q.relist(ctx, shard)
	}
	if err != nil {
		q.observer.Report(observe.DeliveryDelayed, fmt.Errorf("%s: keys of shard %d have another type: %w", name, shard, err))
	}
	return err == nil
}

// relist lists the backlogs of a shard that are not listed.
func (q *Queue) relist(ctx context.Context, shard int) error {
	return q.scanFirst(ctx, shard, func(targets, gates []string) error {
		for i, target := range targets {
			if _, err := q.List(ctx, shard, target, gates[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// List makes a backlog due that is not listed by its gate, or has lost its first
// notification. It reports whether there is such a backlog.
func (q *Queue) List(ctx context.Context, shard int, target, gate string) (found bool, err error) {
	n, err := q.number(ctx, list, []string{
		q.keys.ShardGates(shard), q.keys.ShardFirst(shard), q.keys.Due(shard, gate), q.keys.More(shard, target),
	}, target, gate)
	return n > 0, err
}
