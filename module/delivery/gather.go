package delivery

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// queueTimeout bounds a summary of the queue, and a lookup at the host or its stores.
const queueTimeout = 10 * time.Second

// gather batches lookups: while a call is in flight, new keys wait for the next call.
type gather[K comparable, V any] struct {
	ask func(context.Context, []K) map[K]V

	mu    sync.Mutex
	next  *question[K, V]
	asked bool // a call is in flight
}

type question[K comparable, V any] struct {
	keys    map[K]struct{}
	answers map[K]V
	done    chan struct{}
}

func newGather[K comparable, V any](ask func(context.Context, []K) map[K]V) *gather[K, V] {
	return &gather[K, V]{ask: ask}
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

// get returns the value of a key; found is false if there is none, or ctx has ended.
func (g *gather[K, V]) get(ctx context.Context, key K) (answer V, found bool) {
	q := g.add(key)
	select {
	case <-q.done:
		answer, found = q.answers[key]
		return answer, found
	case <-ctx.Done():
		return answer, false
	}
}

func (g *gather[K, V]) add(key K) *question[K, V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		g.next = &question[K, V]{keys: map[K]struct{}{}, done: make(chan struct{})}
	}
	g.next.keys[key] = struct{}{}
	if !g.asked {
		g.asked = true
		go g.run()
	}
	return g.next
}

func (g *gather[K, V]) run() {
	for {
		g.mu.Lock()
		q := g.next
		g.next = nil
		g.asked = q != nil
		g.mu.Unlock()
		if q == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), queueTimeout)
		q.answers = g.ask(ctx, slices.Collect(maps.Keys(q.keys)))
		cancel()
		close(q.done)
	}
}
