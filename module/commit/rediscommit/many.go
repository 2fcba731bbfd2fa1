package rediscommit

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

// maxPipeline is how many keys are asked for in one round trip, so that no
// answer keeps the requests of others waiting for long.
const maxPipeline = 500

// LoadMany is Load for many keys, in their order: one round trip to each node
// for every 500 of its keys. The nodes are asked side by side, so that one that
// is silent delays no other's answers but only the whole.
func (s *Store[V]) LoadMany(ctx context.Context, keys []string) []Loaded[V] {
	ctx, end := s.cfg.Observer.Begin(ctx, s.operations.loadMany)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	l := loading[V]{s, keys, make([]Loaded[V], len(keys))}
	var nodes sync.WaitGroup
	for node, part := range l.byNode(ctx) {
		nodes.Go(func() { l.loadFrom(ctx, node, part) })
	}
	nodes.Wait()
	end(observe.Outcome{Err: firstError(l.loaded)})
	return l.loaded
}

func firstError[V any](all []Loaded[V]) error {
	for _, loaded := range all {
		if loaded.Err != nil {
			return loaded.Err
		}
	}
	return nil
}

// loading is a LoadMany under way. Its parts are told by their places in keys.
type loading[V any] struct {
	*Store[V]
	keys   []string
	loaded []Loaded[V] // in the order of keys
}

// byNode returns which keys to ask which node for. Those of which that is not
// known are for the client as a whole, which looks for the node.
func (l loading[V]) byNode(ctx context.Context) map[redis.UniversalClient][]int {
	parts := map[redis.UniversalClient][]int{}
	for i, key := range l.keys {
		var node redis.UniversalClient = l.client
		if master, err := l.nodes.masterOf(ctx, l.cfg.KeyPrefix+key); err == nil {
			node = master
		}
		parts[node] = append(parts[node], i)
	}
	return parts
}

// loadFrom asks a node. What it does not answer is asked of the client as a
// whole, once: the key may have moved, or another node taken over.
func (l loading[V]) loadFrom(ctx context.Context, node redis.UniversalClient, part []int) {
	for some := range slices.Chunk(part, maxPipeline) {
		l.ask(ctx, node, some)
		failed := slices.DeleteFunc(slices.Clone(some), func(i int) bool {
			return fault.KindOf(l.loaded[i].Err) != fault.Unavailable
		})
		if len(failed) > 0 && node != l.client {
			l.ask(ctx, l.client, failed)
		}
	}
}

// ask asks for keys in one pipeline.
func (l loading[V]) ask(ctx context.Context, client redis.UniversalClient, part []int) {
	answers := make([]func() (Stored[V], error), len(part))
	// The pipeline's own error is that of one of the commands, or of none.
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n, i := range part {
			answers[n] = l.layout.Read(ctx, p, l.cfg.KeyPrefix+l.keys[i])
		}
		return nil
	})
	for n, i := range part {
		stored, err := l.check(answers[n]())
		if err != nil {
			l.loaded[i] = Loaded[V]{Err: err}
			continue
		}
		l.loaded[i] = Loaded[V]{State: commit.State[V]{Value: stored.Value(), Stamp: stored.Stamp()}}
	}
}
