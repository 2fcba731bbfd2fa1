package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// isWrongType reports whether Redis refused a command because a key has another type. A
// script's error does not begin with the code.
func isWrongType(err error) bool {
	var refusal redis.Error
	return errors.As(err, &refusal) && strings.Contains(refusal.Error(), "WRONGTYPE")
}

// unlessWrongType returns nil for the error of a key of another type.
func unlessWrongType(err error) error {
	if isWrongType(err) {
		return nil
	}
	return err
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

// putAside renames the keys of a shard that have a wrong type, so that hosts can use the
// shard. The next looks list the backlogs of the shard again. The command "pushctl check"
// shows the renamed keys.
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
		q.unlisted.begin(shard)
	}
	if err != nil {
		q.observer.Report(observe.DeliveryDelayed, fmt.Errorf("%s: keys of shard %d have another type: %w", name, shard, err))
	}
	return err == nil
}

// unlisted has the shards whose backlogs must be listed again, each with the cursor of
// the scan. It is safe for concurrent use.
type unlisted struct {
	mu      sync.Mutex
	cursors map[int]uint64
}

func (u *unlisted) begin(shard int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cursors == nil {
		u.cursors = map[int]uint64{}
	}
	u.cursors[shard] = 0
}

// take removes and returns any of the shards.
func (u *unlisted) take() (shard int, cursor uint64, found bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for shard, cursor := range u.cursors {
		delete(u.cursors, shard)
		return shard, cursor, true
	}
	return 0, 0, false
}

// put sets the cursor of a shard that was taken, unless the shard has to begin again.
func (u *unlisted) put(shard int, cursor uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, found := u.cursors[shard]; !found {
		u.cursors[shard] = cursor
	}
}

// relist lists some backlogs again, and returns the shard if it has more. It is a part of
// each look, because no request should wait for thousands of backlogs.
func (q *Queue) relist(ctx context.Context) (more []int) {
	shard, cursor, found := q.unlisted.take()
	if !found {
		return nil
	}
	targets, records, next, err := q.scan(ctx, q.keys.ShardFirst(shard), cursor)
	calls := make([]*redisclient.Call, len(targets))
	for i, target := range targets {
		gate, _, _ := stored.ReadFirstEntry(records[i])
		calls[i] = list.Call(q.listKeys(shard, target, gate), target, gate)
	}
	for _, failed := range q.run(ctx, calls...) {
		err = cmp.Or(err, failed)
	}
	switch {
	case err != nil:
		q.unlisted.put(shard, cursor)
		q.observer.Report(observe.DeliveryDelayed, fmt.Errorf("%s: list the backlogs of shard %d again: %w", name, shard, err))
	case next != 0:
		q.unlisted.put(shard, next)
		more = []int{shard}
	}
	return more
}

func (q *Queue) listKeys(shard int, target, gate string) []string {
	return []string{q.keys.ShardGates(shard), q.keys.ShardFirst(shard), q.keys.Due(shard, gate), q.keys.More(shard, target)}
}

// List repairs a backlog that its gate does not list, or that has lost its first
// notification: it makes the backlog due. It reports whether there was such a backlog.
func (q *Queue) List(ctx context.Context, shard int, target, gate string) (found bool, err error) {
	n, err := q.number(ctx, list, q.listKeys(shard, target, gate), target, gate)
	return n > 0, err
}
