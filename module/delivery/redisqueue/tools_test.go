package redisqueue_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// meanwhile is a hook of a client that calls functions around each pipeline that reads backlogs.
type meanwhile struct {
	redis.Hook
	pipelines int
	before    func(number int)
	after     func(commands []redis.Cmder)
}

func (m *meanwhile) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (m *meanwhile) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (m *meanwhile) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if !slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Name() == "zscore" }) { // a new connection
			return next(ctx, commands)
		}
		m.pipelines++
		m.before(m.pipelines)
		err := next(ctx, commands)
		m.after(commands)
		return err
	}
}

// Hosts change backlogs between the reads of a tool.
func TestBacklogsThatChangeAreReadAgain(t *testing.T) {
	t.Parallel()
	const shard, entry = 3, "hid--------------roomroomuseruser0000001700000000meta"
	keys := stored.Keys{}
	server := redistest.Single(t)
	client, host := server.Client(t), server.Client(t)
	do := func(args ...any) {
		t.Helper()
		if err := host.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(args, err)
		}
	}
	add := func(name, gate string) {
		do("HSET", keys.ShardFirst(shard), name, stored.FirstEntry(gate, entry))
		do("ZADD", keys.Due(shard, gate), 1001, name)
	}
	remove := func(name, gate string) {
		do("HDEL", keys.ShardFirst(shard), name)
		do("ZREM", keys.Due(shard, gate), name)
	}
	hook := &meanwhile{before: func(int) {}, after: func([]redis.Cmder) {}}
	client.AddHook(hook)
	q := newQueue(t, client)
	read := func() (listed, unlisted string, err error) {
		hook.pipelines = 0
		var with, without []string
		err = q.Backlogs(t.Context(), shard, func(b module.Backlog) bool {
			if b.Due.IsZero() {
				without = append(without, b.Claim.Target.Name)
			} else {
				with = append(with, b.Claim.Target.Name+" at "+b.Claim.Gate)
			}
			return true
		})
		slices.Sort(with)
		return strings.Join(with, ", "), strings.Join(without, ", "), err
	}

	for _, name := range []string{"stays", "is sent", "moves"} {
		add(name, "a")
	}
	do("HSET", keys.ShardFirst(shard), "is not listed", stored.FirstEntry("a", entry))
	hook.before = func(number int) {
		if number == 1 {
			remove("is sent", "a")
			remove("moves", "a")
			add("moves", "b")
		}
	}
	listed, unlisted, err := read()
	if want := "moves at b, stays at a"; listed != want || err != nil {
		t.Errorf("read %q, %v, want %s", listed, err, want)
	}
	if want := "is not listed"; unlisted != want || hook.pipelines > 4 {
		t.Errorf("not listed after %d reads: %q, want %s", hook.pipelines, unlisted, want)
	}

	// A timeout after the first replies.
	timeout := errors.New("i/o timeout")
	hook.before = func(int) {}
	hook.after = func(commands []redis.Cmder) { commands[len(commands)-3].SetErr(timeout) }
	if _, unlisted, err := read(); !errors.Is(err, timeout) {
		t.Errorf("without an answer: read %q, %v", unlisted, err)
	}
}
