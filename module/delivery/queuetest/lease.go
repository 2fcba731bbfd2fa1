package queuetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

func oneOwner(t *testing.T, newQueue hosts, shard int) {
	q, other, a, b := newQueue(t), newQueue(t), unique(), unique()
	first := acquire(t, q, a, long, shard)
	if !first.Held || first.Epoch <= 0 {
		t.Fatalf("a free lease: got %+v", first)
	}
	if got := acquire(t, other, b, long, shard); got.Held {
		t.Errorf("the lease of another: got %+v", got)
	}
	if got := acquire(t, q, a, long, shard); !got.Held || got.Epoch != first.Epoch {
		t.Errorf("a renewal: got %+v, want %+v", got, first)
	}
	persist(t.Context(), t, func() error { return other.Release(t.Context(), b, shard, first.Epoch) })
	persist(t.Context(), t, func() error { return q.Release(t.Context(), a, shard, first.Epoch-1) })
	if got := acquire(t, other, b, long, shard); got.Held {
		t.Error("a lease was given back by another, or as one that is over")
	}
	results := other.Acquire(t.Context(), b, long, []int{shard, shard + 1})
	if len(results) != 2 {
		t.Errorf("got %d results", len(results))
	}
	persist(t.Context(), t, func() error { return q.Release(t.Context(), a, shard, first.Epoch) })
	second := acquire(t, other, b, long, shard)
	if !second.Held || second.Epoch <= first.Epoch {
		t.Errorf("a lease that was given back: got %+v after %+v", second, first)
	}
}

func leasesEnd(t *testing.T, newQueue hosts, shard int) {
	q, other, a, b := newQueue(t), newQueue(t), unique(), unique()
	first := take(t, q, a, short, shard)
	second := take(t, other, b, short, shard)
	third := take(t, q, a, long, shard)
	if first.Epoch >= second.Epoch || second.Epoch >= third.Epoch {
		t.Errorf("got epochs %d, %d, %d", first.Epoch, second.Epoch, third.Epoch)
	}
	// Its owner, too, gets a new one of a lease that has ended.
	last := take(t, q, a, short, shard+1)
	for lease := last; lease.Epoch == last.Epoch; {
		if lease = acquire(t, other, b, short, shard+1); !lease.Held {
			lease = last
		}
	}
	if again := take(t, q, a, long, shard+1); again.Epoch <= last.Epoch {
		t.Errorf("got epoch %d after %d", again.Epoch, last.Epoch)
	}
}

func lastEntry(t *testing.T, newQueue hosts, shard int) {
	q, host := newQueue(t), unique()
	lease := take(t, q, host, long, shard)
	if lease.Last != "" {
		t.Errorf("of an empty log: got %q", lease.Last)
	}
	for range 3 {
		add(t, newQueue(t), shard, unique(), "x")
		entries := read(t, q, shard, "", 100)
		if got, want := acquire(t, q, host, long, shard).Last, entries[len(entries)-1].Position; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func restored(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	if c := restore(t, q, shard); len(c.Finished) > 0 || len(c.Held) > 0 {
		t.Errorf("before the first one: got %+v", c)
	}
	epoch := take(t, q, unique(), long, shard).Epoch
	for _, step := range []struct {
		progress module.Progress
		finished string
		held     map[string][]byte
	}{
		{module.Progress{}, "", map[string][]byte{}},
		{
			module.Progress{Finished: []byte("\x00\xff"), Held: map[string][]byte{"a": []byte("1"), "b": {0, 255}, "c": {}}},
			"\x00\xff", map[string][]byte{"a": []byte("1"), "b": {0, 255}, "c": {}},
		},
		{
			module.Progress{Held: map[string][]byte{"a": nil, "b": []byte("2"), "d": nil, "e": []byte("3")}},
			"\x00\xff", map[string][]byte{"b": []byte("2"), "c": {}, "e": []byte("3")},
		},
		{module.Progress{Finished: []byte{}}, "", map[string][]byte{"b": []byte("2"), "c": {}, "e": []byte("3")}},
	} {
		checkpoint(t, q, shard, epoch, step.progress)
		c := restore(t, other, shard)
		if string(c.Finished) != step.finished || !maps.EqualFunc(c.Held, step.held, slices.Equal) {
			t.Errorf("got %+v, want Finished %q, Held %v", c, step.finished, step.held)
		}
	}
}

func dropped(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	epoch := take(t, q, unique(), long, shard).Epoch
	for n := range 5 {
		add(t, q, shard, unique(), fmt.Sprint(n))
		add(t, q, shard+1, unique(), fmt.Sprint(n))
	}
	entries := read(t, q, shard, "", 100)
	held := map[string][]byte{"a": []byte("x")}
	for _, step := range []struct {
		done []int
		held map[string][]byte
		want []string
	}{
		{nil, nil, []string{"0", "1", "2", "3", "4"}},
		{[]int{1}, nil, []string{"0", "2", "3", "4"}},
		{[]int{1, 0}, nil, []string{"2", "3", "4"}},
		{[]int{3, 0}, held, []string{"2", "4"}},
		{[]int{2, 4}, nil, nil},
	} {
		var done []string
		for _, n := range step.done {
			done = append(done, entries[n].Position)
		}
		checkpoint(t, q, shard, epoch, module.Progress{Done: done, Held: step.held})
		if got := data(t, q, shard); !slices.Equal(got, step.want) {
			t.Errorf("with %v done: got %q, want %q", step.done, got, step.want)
		}
	}
	if got := len(data(t, q, shard+1)); got != 5 {
		t.Errorf("another shard has %d entries", got)
	}
	add(t, q, shard, unique(), "later")
	after := read(t, q, shard, entries[4].Position, 10)
	if len(after) != 1 || after[0].Data != "later" {
		t.Errorf("after the last one there is %v", after)
	}
}

func fenced(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	add(t, q, shard, unique(), "x")
	done := read(t, q, shard, "", 1)[0].Position
	former := take(t, q, unique(), short, shard).Epoch
	owner := take(t, other, unique(), long, shard).Epoch
	want := module.Progress{Finished: []byte("the owner's"), Held: map[string][]byte{"a": []byte("the owner's")}}
	checkpoint(t, other, shard, owner, want)
	progress := module.Progress{Done: []string{done}, Finished: []byte("x"), Held: map[string][]byte{"a": nil, "b": []byte("x")}}
	for _, epoch := range []int64{former, owner - 1, owner + 1, 0} {
		var err error
		for err = fault.New(fault.Unavailable, ""); fault.KindOf(err) == fault.Unavailable && !errors.Is(err, module.ErrFenced); {
			err = checkpointOne(t.Context(), q, shard, epoch, progress)
		}
		if !errors.Is(err, module.ErrFenced) {
			t.Errorf("epoch %d, which is not %d: got %v", epoch, owner, err)
		}
	}
	c := restore(t, q, shard)
	if string(c.Finished) != "the owner's" || !maps.EqualFunc(c.Held, want.Held, slices.Equal) {
		t.Errorf("a former owner changed it: %+v", c)
	}
	if got := data(t, q, shard); len(got) != 1 {
		t.Errorf("a former owner dropped an entry: %q", got)
	}
}

// owners has hosts take a shard from each other, whose leases end while they work.
// Each adds one to what was kept; what is not fenced must not be lost.
func owners(t *testing.T, newQueue hosts, shard int) {
	const many, rounds = 4, 25
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var counted sync.Map
	var working sync.WaitGroup
	for range many {
		q, host := newQueue(t), unique()
		working.Go(func() {
			for kept := 0; kept < rounds && ctx.Err() == nil; {
				lease := q.Acquire(ctx, host, short/10, []int{shard})[shard]
				if lease.Err != nil || !lease.Value.Held {
					continue
				}
				c, err := q.Restore(ctx, shard)
				if err != nil {
					continue
				}
				next, _ := strconv.Atoi(string(c.Finished))
				next++
				err = checkpointOne(ctx, q, shard, lease.Value.Epoch, module.Progress{Finished: []byte(strconv.Itoa(next))})
				if err != nil {
					continue // it was fenced, or nobody knows
				}
				kept++
				if _, twice := counted.LoadOrStore(next, true); twice {
					t.Errorf("two owners kept %d", next)
				}
			}
		})
	}
	working.Wait()
	if ctx.Err() != nil {
		t.Fatal("the hosts did not come to an end")
	}
	total := 0
	counted.Range(func(_, _ any) bool { total++; return true })
	if got, _ := strconv.Atoi(string(restore(t, newQueue(t), shard).Finished)); total != many*rounds || got < total {
		t.Errorf("%d checkpoints were kept, and the last says %d", total, got)
	}
}

func muchHeld(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	epoch := take(t, q, unique(), long, shard).Epoch
	held := map[string][]byte{}
	for n := range 5000 {
		held[fmt.Sprint("pusher ", n)] = fmt.Appendf(nil, "what is kept of %d", n)
	}
	checkpoint(t, q, shard, epoch, module.Progress{Held: held})
	if got := restore(t, q, shard).Held; !maps.EqualFunc(got, held, slices.Equal) {
		t.Errorf("got %d, want %d", len(got), len(held))
	}
	for name := range held {
		held[name] = nil
	}
	checkpoint(t, q, shard, epoch, module.Progress{Held: held})
	if got := restore(t, q, shard).Held; len(got) > 0 {
		t.Errorf("%d are left", len(got))
	}
}

// instructions waits until the owner of a shard gets some with its lease.
func instructions(t *testing.T, q module.DeliveryQueue, host string, shard int) (all map[string]string) {
	t.Helper()
	for deadline := time.Now().Add(patience); len(all) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the owner gets no instruction")
		}
		all = map[string]string{}
		for id, instruction := range acquire(t, q, host, long, shard).Instructions {
			all[id] = string(instruction)
		}
	}
	return all
}

func instructed(t *testing.T, newQueue hosts, shard int) {
	const instruction, answer = "\x00do\xff", "\xffdone\x00"
	q, other, host := newQueue(t), newQueue(t), unique()
	epoch := take(t, q, host, long, shard).Epoch
	results := make(chan module.Result[[]byte], 1)
	go func() { results <- other.Instruct(t.Context(), map[int][]byte{shard: []byte(instruction)})[shard] }()
	for id, got := range instructions(t, q, host, shard) {
		if got != instruction {
			t.Errorf("got %q, want %q", got, instruction)
		}
		if again := acquire(t, q, host, long, shard).Instructions; string(again[id]) != instruction {
			t.Errorf("before it is answered, the next lease has %q", again)
		}
		var err error
		for !errors.Is(err, module.ErrFenced) && t.Context().Err() == nil {
			err = checkpointOne(t.Context(), q, shard, epoch-1, module.Progress{Answers: map[string][]byte{id: []byte("x")}})
		}
		if len(acquire(t, q, host, long, shard).Instructions) != 1 {
			t.Error("a former owner has answered")
		}
		checkpoint(t, q, shard, epoch, module.Progress{Answers: map[string][]byte{
			id: []byte(answer), "of nobody": []byte("x"),
		}})
		checkpoint(t, q, shard, epoch, module.Progress{Answers: map[string][]byte{id: []byte("x")}})
	}
	if left := acquire(t, q, host, long, shard).Instructions; len(left) > 0 {
		t.Errorf("after it was answered, the next lease has %q", left)
	}
	select {
	case got := <-results:
		if got.Err != nil || string(got.Value) != answer {
			t.Errorf("got %q, %v, want %q", got.Value, got.Err, answer)
		}
	case <-time.After(patience):
		t.Error("the answer does not arrive")
	}
}

func takenBack(t *testing.T, newQueue hosts, shard int) {
	q, other, host := newQueue(t), newQueue(t), unique()
	take(t, q, host, long, shard)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	results := make(chan map[int]module.Result[[]byte], 1)
	go func() {
		results <- other.Instruct(ctx, map[int][]byte{shard: []byte("x"), shard + 1: []byte("y")})
	}()
	instructions(t, q, host, shard)
	cancel()
	select {
	case got := <-results:
		if len(got) != 2 {
			t.Errorf("got %d results", len(got))
		}
		for shard, result := range got {
			if !errors.Is(result.Err, module.ErrNotAnswered) {
				t.Errorf("shard %d: got %v", shard, result.Err)
			}
		}
	case <-time.After(patience):
		t.Error("it does not return")
	}
	for _, n := range []int{shard, shard + 1} {
		if left := acquire(t, q, host, long, n).Instructions; len(left) > 0 {
			t.Errorf("the owner of %d still gets %q", n, left)
		}
	}
}

func endedContext(t *testing.T, newQueue hosts, shard int) {
	q, host := newQueue(t), unique()
	epoch := take(t, q, host, long, shard).Epoch
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantUnavailable(t, "open", q.Open(ctx, Shards))
	wantUnavailable(t, "append", q.Append(ctx, unique(), long, map[int][]byte{shard: []byte("x")}))
	wantUnavailable(t, "acquire", q.Acquire(ctx, unique(), long, []int{shard + 1})[shard+1].Err)
	wantUnavailable(t, "release", q.Release(ctx, host, shard, epoch))
	wantUnavailable(t, "checkpoint", checkpointOne(ctx, q, shard, epoch, module.Progress{Finished: []byte("x")}))
	wantUnavailable(t, "leave", q.Leave(ctx, host))
	wantUnavailable(t, "instruct", q.Instruct(ctx, map[int][]byte{shard: []byte("x")})[shard].Err)
	_, err := q.Join(ctx, host, long)
	wantUnavailable(t, "join", err)
	_, err = q.ShareGateways(ctx, nil, long)
	wantUnavailable(t, "share gateways", err)
	_, err = q.Restore(ctx, shard)
	wantUnavailable(t, "restore", err)
	_, err = q.Read(ctx, shard, "", 1)
	wantUnavailable(t, "read", err)
	if got := data(t, q, shard); len(got) > 0 {
		t.Errorf("it added %q", got)
	}
	if c := restore(t, q, shard); len(c.Finished) > 0 {
		t.Errorf("it kept %q", c.Finished)
	}
	if lease := acquire(t, q, host, long, shard); lease.Epoch != epoch {
		t.Error("it gave the lease back")
	} else if len(lease.Instructions) > 0 {
		t.Error("it gave an instruction")
	}
}
