package queuetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

func fixedShards(t *testing.T, newQueue hosts, _ int) {
	for range 2 {
		persist(t.Context(), t, func() error { return newQueue(t).Open(t.Context(), Shards) })
	}
	for {
		err := newQueue(t).Open(t.Context(), Shards-1)
		if fault.KindOf(err) == fault.Unavailable {
			continue
		}
		if err == nil {
			t.Error("opened with another number of shards")
		}
		return
	}
}

func readInOrder(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	if got := read(t, q, shard, "", 10); len(got) != 0 {
		t.Fatalf("got %d entries of an empty log", len(got))
	}
	var want []string
	for n := range 25 {
		want = append(want, fmt.Sprint("entry ", n))
		add(t, []module.DeliveryQueue{q, other}[n%2], shard, unique(), want[n])
	}
	var got []string
	var last module.LogEntry
	for {
		page := read(t, q, shard, last.Position, 10)
		if len(page) > 10 {
			t.Fatalf("got %d entries, asked for 10", len(page))
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			if e.Added.Before(last.Added) || e.Added.IsZero() {
				t.Errorf("%q was added at %v, the one before it at %v", e.Data, e.Added, last.Added)
			}
			got, last = append(got, e.Data), e
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func bytesAreKept(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	var every strings.Builder
	for b := range 256 {
		every.WriteByte(byte(b))
	}
	entries := map[int][]byte{shard: []byte(every.String()), shard + 1: {}, shard + 2: []byte(strings.Repeat(every.String(), 1200))}
	persist(t.Context(), t, func() error { return q.Append(t.Context(), unique(), long, entries) })
	for shard, want := range entries {
		if got := data(t, q, shard); !slices.Equal(got, []string{string(want)}) {
			t.Errorf("shard %d: got %d entries, want one of %d bytes", shard, len(got), len(want))
		}
	}
}

func addedOnce(t *testing.T, newQueue hosts, shard int) {
	q, other, key := newQueue(t), newQueue(t), unique()
	add(t, q, shard, key, "first")
	add(t, q, shard, unique(), "second")
	add(t, other, shard, key, "first again")
	if got, want := data(t, q, shard), []string{"first", "second"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	both := map[int][]byte{shard: []byte("first again"), shard + 1: []byte("of another shard")}
	persist(t.Context(), t, func() error { return q.Append(t.Context(), key, long, both) })
	if got, want := data(t, q, shard), []string{"first", "second"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := data(t, q, shard+1), []string{"of another shard"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	key = unique()
	for deadline := time.Now().Add(patience); len(data(t, q, shard+2)) < 2; {
		if time.Now().After(deadline) {
			t.Fatal("a key is remembered for longer than the window")
		}
		persist(t.Context(), t, func() error { return q.Append(t.Context(), key, short, map[int][]byte{shard + 2: []byte("x")}) })
	}
}

func addedOnceByMany(t *testing.T, newQueue hosts, shard int) {
	const keys, writers = 40, 8
	reader := newQueue(t)
	seen := map[string]int{}
	var writing sync.WaitGroup
	names := make([]string, keys)
	for i := range names {
		names[i] = unique()
	}
	for w := range writers {
		q := newQueue(t)
		writing.Go(func() {
			for i := range keys {
				key := names[(i+5*w)%keys]
				for t.Context().Err() == nil {
					err := q.Append(t.Context(), key, long, map[int][]byte{shard: []byte(key)})
					if err == nil {
						break
					}
					if fault.KindOf(err) != fault.Unavailable {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	written := make(chan struct{})
	go func() {
		writing.Wait()
		close(written)
	}()
	last := ""
	for ended := false; !ended; {
		select {
		case <-written:
			ended = true // and one more look
		default:
		}
		for _, e := range read(t, reader, shard, last, 1000) {
			seen[e.Data]++
			last = e.Position
		}
	}
	for _, key := range names {
		if seen[key] != 1 {
			t.Errorf("an entry was read %d times", seen[key])
		}
	}
}

func joined(t *testing.T, newQueue hosts, _ int) {
	q, other := newQueue(t), newQueue(t)
	a, b := "a"+unique(), "b"+unique()
	join := func(q module.DeliveryQueue, host string, lasts time.Duration) (all []string) {
		t.Helper()
		persist(t.Context(), t, func() (err error) {
			all, err = q.Join(t.Context(), host, lasts)
			return err
		})
		return slices.DeleteFunc(all, func(name string) bool { return name != a && name != b })
	}
	if got := join(q, b, long); !slices.Equal(got, []string{b}) {
		t.Errorf("got %q", got)
	}
	if got := join(other, a, long); !slices.Equal(got, []string{a, b}) {
		t.Errorf("got %q", got)
	}
	persist(t.Context(), t, func() error { return q.Leave(t.Context(), b) })
	if got := join(other, a, long); !slices.Equal(got, []string{a}) {
		t.Errorf("got %q after one has left", got)
	}
	join(q, b, short)
	for deadline := time.Now().Add(patience); len(join(other, a, long)) > 1; {
		if time.Now().After(deadline) {
			t.Fatal("a host that is gone stays")
		}
	}
}

func heard(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	ctx, cancel := context.WithCancel(t.Context())
	watching, appended, ended := make(chan struct{}), make(chan int, 1000), make(chan error)
	go func() {
		ended <- q.Watch(ctx, func() { close(watching) }, func(shard int) { appended <- shard })
	}()
	defer cancel()
	within := time.After(patience)
	select {
	case <-watching:
	case err := <-ended:
		t.Fatal(err)
	case <-within:
		t.Fatal("nobody watches")
	}
	for _, by := range []module.DeliveryQueue{q, other} {
		persist(ctx, t, func() error {
			return by.Append(ctx, unique(), long, map[int][]byte{shard: []byte("x"), shard + 1: []byte("x")})
		})
		for missing := map[int]bool{shard: true, shard + 1: true}; len(missing) > 0; {
			select {
			case of := <-appended:
				delete(missing, of)
			case err := <-ended:
				t.Fatal(err)
			case <-within:
				t.Fatalf("not heard: %v", missing)
			}
		}
	}
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended without an error")
		}
	case <-time.After(patience):
		t.Error("it goes on when its context has ended")
	}
}
