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
		if !slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Name() == "lindex" }) { // a new connection
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
	add := func(name string) {
		do("RPUSH", keys.Backlog(shard, name), entry)
		do("ZADD", keys.ShardDue(shard), 1001, name)
	}
	remove := func(name string) {
		do("DEL", keys.Backlog(shard, name))
		do("ZREM", keys.ShardDue(shard), name)
	}
	hook := &meanwhile{before: func(int) {}, after: func([]redis.Cmder) {}}
	client.AddHook(hook)
	q := newQueue(t, client)
	read := func() (readable, empty []string, err error) {
		hook.pipelines = 0
		err = q.Backlogs(t.Context(), shard, func(b module.Backlog) bool {
			if b.First.Meta == "meta" && b.Waiting == 1 {
				readable = append(readable, b.Claim.Target.Name)
			} else {
				empty = append(empty, b.Claim.Target.Name)
			}
			return true
		})
		slices.Sort(readable)
		return readable, empty, err
	}

	for _, name := range []string{"stays", "is sent", "is sent and comes again"} {
		add(name)
	}
	do("ZADD", keys.ShardDue(shard), 1001, "has no list")
	do("SET", keys.Backlog(shard, "is a text"), "x")
	do("ZADD", keys.ShardDue(shard), 1001, "is a text")
	hook.before = func(number int) {
		switch number {
		case 1:
			remove("is sent")
			do("DEL", keys.Backlog(shard, "is sent and comes again"))
		case 2:
			add("is sent and comes again")
		}
	}
	readable, empty, err := read()
	slices.Sort(empty)
	if want := "is sent and comes again, stays"; strings.Join(readable, ", ") != want || err != nil {
		t.Errorf("read %q, %v, want %s", readable, err, want)
	}
	if want := "has no list, is a text"; strings.Join(empty, ", ") != want || hook.pipelines > 4 {
		t.Errorf("unreadable after %d reads: %q, want %s", hook.pipelines, empty, want)
	}

	// A timeout after the first replies.
	timeout := errors.New("i/o timeout")
	hook.before = func(int) {}
	hook.after = func(commands []redis.Cmder) { commands[len(commands)-3].SetErr(timeout) }
	if _, empty, err := read(); !errors.Is(err, timeout) {
		t.Errorf("without an answer: read %q, %v", empty, err)
	}
}
