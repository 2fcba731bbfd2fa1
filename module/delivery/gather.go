package delivery

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// queueTimeout bounds a summary of the queue, and a lookup at the host or its stores.
const queueTimeout = 10 * time.Second

// gatherFor is how long new keys wait for a call in flight. A call that takes longer is slow:
// the next one begins beside it.
const gatherFor = 20 * time.Millisecond

// gather batches lookups: while a call is in flight, new keys wait for the next call. Keys
// of different partitions of the queue are looked up side by side, so a partition that does not answer
// delays no keys of others.
type gather[K comparable, V any] struct {
	ask       func(context.Context, []K) map[K]V
	partition func(context.Context, []K) [][]K

	mu    sync.Mutex
	next  map[K]*question[V]
	asked bool // a call is in flight
}

type question[V any] struct {
	answer V
	found  bool
	done   chan struct{} // closed after answer and found are set
}

func newGather[K comparable, V any](
	queue module.DeliveryQueue, userOf func(K) mxid.UserID, ask func(context.Context, []K) map[K]V,
) *gather[K, V] {
	return &gather[K, V]{ask: ask, next: map[K]*question[V]{}, partition: func(ctx context.Context, keys []K) [][]K {
		return byPartition(ctx, queue, keys, userOf)
	}}
}

// byPartition groups items by the partitions of the queue that have their users.
func byPartition[K any](ctx context.Context, queue module.DeliveryQueue, items []K, userOf func(K) mxid.UserID) (partitions [][]K) {
	if len(items) == 1 {
		return [][]K{items}
	}
	of := map[mxid.UserID][]K{}
	var users []mxid.UserID
	for _, item := range items {
		user := userOf(item)
		if of[user] == nil {
			users = append(users, user)
		}
		of[user] = append(of[user], item)
	}
	for _, users := range queue.Partition(ctx, users) {
		var some []K
		for _, user := range users {
			some = append(some, of[user]...)
		}
		partitions = append(partitions, some)
	}
	return partitions
}

// eachOf turns ask into a function that returns its results by key. Ask returns a result
// for each key, in the order of the keys, or nil for no results.
func eachOf[K comparable, V any](ask func(context.Context, []K) []V) func(context.Context, []K) map[K]V {
	return func(ctx context.Context, keys []K) map[K]V {
		answers := map[K]V{}
		for i, answer := range ask(ctx, keys) {
			if i < len(keys) {
				answers[keys[i]] = answer
			}
		}
		return answers
	}
}

// get returns the value of a key; found is false if there is none in time, or ctx has ended.
func (g *gather[K, V]) get(ctx context.Context, key K, within time.Duration) (answer V, found bool) {
	return g.add(key).wait(ctx, within)
}

func (q *question[V]) wait(ctx context.Context, within time.Duration) (answer V, found bool) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case <-q.done:
		return q.answer, q.found
	case <-timeout.C:
	case <-ctx.Done():
	}
	return answer, false
}

// add asks for a key without waiting for the answer.
func (g *gather[K, V]) add(key K) *question[V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.next[key]
	if q == nil {
		q = &question[V]{done: make(chan struct{})}
		g.next[key] = q
	}
	if !g.asked {
		g.asked = true
		go g.run()
	}
	return q
}

func (g *gather[K, V]) run() {
	for {
		g.mu.Lock()
		batch := g.next
		g.next = map[K]*question[V]{}
		g.asked = len(batch) > 0
		g.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		g.askAll(batch)
	}
}

// askAll looks up all keys of a batch. It returns after gatherFor at the latest.
func (g *gather[K, V]) askAll(batch map[K]*question[V]) {
	ctx, cancel := context.WithTimeout(context.Background(), queueTimeout)
	var asking sync.WaitGroup
	for _, keys := range g.partition(ctx, slices.Collect(maps.Keys(batch))) {
		asking.Go(func() {
			answers := g.ask(ctx, keys)
			for _, key := range keys {
				q := batch[key]
				q.answer, q.found = answers[key]
				close(q.done)
			}
		})
	}
	all := make(chan struct{})
	go func() {
		asking.Wait()
		cancel()
		close(all)
	}()
	slow := time.NewTimer(gatherFor)
	defer slow.Stop()
	select {
	case <-all:
	case <-slow.C:
	}
}
