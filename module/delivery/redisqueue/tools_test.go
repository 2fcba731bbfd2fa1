package redisqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// meanwhile is a hook of a client that calls functions around each command or pipeline that has one
// of these commands.
type meanwhile struct {
	redis.Hook
	commands  string
	pipelines int
	before    func(number int)
	after     func(commands []redis.Cmder)
}

func (m *meanwhile) DialHook(next redis.DialHook) redis.DialHook { return next }
func (m *meanwhile) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		return m.ProcessPipelineHook(func(ctx context.Context, _ []redis.Cmder) error { return next(ctx, command) })(ctx, []redis.Cmder{command})
	}
}
func (m *meanwhile) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if !slices.ContainsFunc(commands, func(c redis.Cmder) bool { return strings.Contains(m.commands, c.Name()) }) { // a new connection
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
	hook := &meanwhile{commands: "zscore", before: func(int) {}, after: func([]redis.Cmder) {}}
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

// waiting is a backlog with a first notification, another one, and a text that is of neither.
type waiting struct {
	*testing.T
	client       redis.UniversalClient
	keys         stored.Keys
	shard        int
	first, other string // fields of texts
	stray        string
}

const strayTarget, strayEntry = "target", "hid-------------1roomroomuseruser0000001700000000meta"

func newWaiting(t *testing.T, client redis.UniversalClient) *waiting {
	w := &waiting{T: t, client: client, shard: 3}
	w.first, w.other, w.stray = strayTarget+"id-------------1", strayTarget+"id-------------2", strayTarget+"id-------------3"
	w.do("HSET", w.keys.ShardFirst(w.shard), strayTarget, stored.FirstEntry("gate", strayEntry))
	w.do("RPUSH", w.keys.More(w.shard, strayTarget), w.entry(2))
	w.do("ZADD", w.keys.Due(w.shard, "gate"), 1001, strayTarget)
	w.do("ZADD", w.keys.ShardGates(w.shard), 1001, "gate")
	w.do("HSET", w.keys.ShardTexts(w.shard), w.first, "text 1", w.other, "text 2", w.stray, "text 3")
	return w
}

func (w *waiting) do(args ...any) {
	w.Helper()
	if err := w.client.Do(w.Context(), args...).Err(); err != nil {
		w.Fatal(args, err)
	}
}

func (w *waiting) entry(n int) string {
	return strings.Replace(strayEntry, "-1", fmt.Sprint("-", n), 1)
}

func (w *waiting) fields() []string { return []string{w.first, w.other, w.stray} }

func (w *waiting) wantStray(q *redisqueue.Queue) {
	w.Helper()
	if got, err := q.StrayTexts(w.Context(), w.shard, w.fields()); !slices.Equal(got, []string{w.stray}) || err != nil {
		w.Errorf("stray: %q, %v", got, err)
	}
}

func (w *waiting) wantDropped(q *redisqueue.Queue) {
	w.Helper()
	n, err := q.DropTexts(w.Context(), w.shard, w.fields())
	left := w.client.HKeys(w.Context(), w.keys.ShardTexts(w.shard)).Val()
	slices.Sort(left)
	if n != 1 || err != nil || !slices.Equal(left, []string{w.first, w.other}) {
		w.Errorf("dropped %d, %v, left %q", n, err, left)
	}
}

func TestOnlyTextsWithoutANotificationAreDropped(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	w, q := newWaiting(t, client), newQueue(t, client)
	w.wantStray(q)
	w.wantDropped(q)
	w.do("DEL", w.keys.ShardFirst(w.shard))
	w.do("SET", w.keys.ShardFirst(w.shard), "of another type")
	if got, err := q.StrayTexts(t.Context(), w.shard, w.fields()); len(got) > 0 || err != nil {
		t.Errorf("without the first notifications: %q, %v", got, err)
	}
}

// A host delivers the first notification between two reads of a tool.
func TestTextsOfBacklogsThatChangeAreNotStray(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	w, client := newWaiting(t, server.Client(t)), server.Client(t)
	hook := &meanwhile{commands: "lrange hmget hexists", after: func([]redis.Cmder) {}}
	hook.before = func(number int) {
		if number == 2 {
			w.do("HSET", w.keys.ShardFirst(w.shard), strayTarget, stored.FirstEntry("gate", w.entry(2)))
			w.do("DEL", w.keys.More(w.shard, strayTarget))
			w.do("HDEL", w.keys.ShardTexts(w.shard), w.first)
		}
	}
	client.AddHook(hook)
	w.wantStray(newQueue(t, client))
	if hook.pipelines != 3 {
		t.Errorf("%d pipelines", hook.pipelines)
	}
}

func TestTextsOfAShardThatMovesAreNotStray(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 2, 0)
	w := newWaiting(t, cluster.Client(t))
	q := newQueue(t, cluster.Client(t))
	slot := redisclient.SlotOf(w.keys.ShardTexts(w.shard))
	from, err := cluster.MasterOf(t.Context(), slot)
	if err != nil {
		t.Fatal(err)
	}
	to := cluster.Masters()[0]
	if to == from {
		to = cluster.Masters()[1]
	}
	move, err := cluster.BeginMove(t.Context(), slot, to)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{w.keys.ShardFirst(w.shard), w.keys.More(w.shard, strayTarget), w.keys.ShardTexts(w.shard)} {
		if err := move.MoveKeys(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		w.wantStray(q)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, _ = q.DropTexts(ctx, w.shard, []string{w.first, w.other})
		cancel()
	}
	if err := move.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantDropped(q)
}

func TestLateBacklogsAreHastened(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	w, q := newWaiting(t, client), newQueue(t, client)
	now := time.Now()
	in := func(d time.Duration) int64 { return now.Add(d).UnixMicro() | 1 }
	due := w.keys.Due(w.shard, "gate")
	w.do("ZADD", due, in(time.Minute), "waits", in(2*time.Hour), "too late", in(2*time.Hour)+1, "claimed too long", in(time.Second)+1, "claimed")
	w.do("ZREM", due, strayTarget)
	const more = 450 // than one script changes
	for n := range more {
		w.do("ZADD", due, in(2*time.Hour), fmt.Sprint("too late ", n))
	}
	w.do("ZADD", w.keys.ShardGates(w.shard), in(3*time.Hour), "gate")
	if n, err := q.Hasten(t.Context(), w.shard, "gate", time.Hour); n != 2+more || err != nil {
		t.Errorf("hastened %d, %v", n, err)
	}
	for name, isHastened := range map[string]bool{"waits": false, "too late": true, "claimed too long": true, "claimed": false} {
		score := int64(client.ZScore(t.Context(), due, name).Val())
		if is := time.UnixMicro(score).Before(time.Now().Add(time.Second/2)) && score%2 == 1; is != isHastened {
			t.Errorf("%s: due in %v", name, time.UnixMicro(score).Sub(now))
		}
	}
	if at := client.ZScore(t.Context(), w.keys.ShardGates(w.shard), "gate").Val(); int64(at) > time.Now().UnixMicro() {
		t.Errorf("its gate is looked at in %v", time.UnixMicro(int64(at)).Sub(now))
	}
}

func TestABacklogMovesToAnotherShard(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 2, 0)
	const to = 4
	for calls := range 9 { // made before the first move is interrupted
		client := cluster.Client(t)
		if err := client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error { return node.FlushAll(ctx).Err() }); err != nil {
			t.Fatal(err)
		}
		w, tool := newWaiting(t, client), cluster.Client(t)
		w.do("HDEL", w.keys.ShardTexts(w.shard), w.stray)
		w.do("RPUSH", w.keys.More(w.shard, strayTarget), "unreadable", w.entry(4))
		w.do("HSET", w.keys.ShardTrouble(w.shard), strayTarget, "1 {}")
		ctx, cancel := context.WithCancel(t.Context())
		tool.AddHook(&meanwhile{commands: "evalsha", after: func([]redis.Cmder) {}, before: func(n int) {
			if n > calls {
				cancel()
			}
		}})
		b := module.Backlog{Claim: module.Claim{Target: module.Target{Shard: w.shard, Name: strayTarget}, Gate: "gate"}}
		_, interrupted := newQueue(t, tool).Move(ctx, b, "useruser", to)
		cancel()
		q := newQueue(t, client)
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			_, err := q.Move(t.Context(), b, "useruser", to)
			if n := client.HLen(t.Context(), w.keys.ShardFirst(w.shard)).Val(); n == 0 && (err == nil || errors.Is(err, module.ErrFenced)) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("interrupted after %d calls by %v, then %v", calls, interrupted, err)
			}
		}
		w.wantMoved(calls, to)
		if err := q.DropShard(t.Context(), w.shard); err != nil {
			t.Error(err)
		}
		for _, key := range []string{w.keys.ShardGates(w.shard), w.keys.Due(w.shard, "gate"), w.keys.ShardTrouble(w.shard), w.keys.ShardTexts(w.shard)} {
			if client.Exists(t.Context(), key).Val() > 0 {
				t.Errorf("after %d calls: %s is left", calls, key)
			}
		}
	}
}

// wantMoved checks that the other shard has each readable notification once, in order.
func (w *waiting) wantMoved(calls, to int) {
	w.Helper()
	_, entry, _ := stored.ReadFirstEntry(w.client.HGet(w.Context(), w.keys.ShardFirst(to), strayTarget).Val())
	var ids []string
	for _, text := range append([]string{entry}, w.client.LRange(w.Context(), w.keys.More(to, strayTarget), 0, -1).Val()...) {
		e, _ := stored.ReadBacklogEntry(text)
		ids = append(ids, e.ID)
	}
	if !slices.Equal(ids, []string{"id-------------1", "id-------------2", "id-------------4"}) {
		w.Errorf("after %d calls: moved %q", calls, ids)
	}
	if texts := w.client.HMGet(w.Context(), w.keys.ShardTexts(to), w.first, w.other).Val(); !slices.Equal(texts, []any{"text 1", "text 2"}) {
		w.Errorf("after %d calls: texts %q", calls, texts)
	}
}

func TestABacklogThatAHostSendsDoesNotMove(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	w, q := newWaiting(t, client), newQueue(t, client)
	w.do("ZADD", w.keys.Due(w.shard, "gate"), time.Now().Add(time.Second).UnixMicro()/2*2, strayTarget)
	b := module.Backlog{Claim: module.Claim{Target: module.Target{Shard: w.shard, Name: strayTarget}, Gate: "gate"}}
	if n, err := q.Move(t.Context(), b, "useruser", 4); n != 0 || !errors.Is(err, module.ErrFenced) {
		t.Errorf("moved %d, %v", n, err)
	}
	if err := q.DropShard(t.Context(), w.shard); err != nil || client.Exists(t.Context(), w.keys.ShardGates(w.shard)).Val() == 0 {
		t.Errorf("a shard with a backlog was dropped, %v", err)
	}
}
