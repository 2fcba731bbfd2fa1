package rediscommit

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
)

// maxPipeline is how many keys are asked for in one round trip, so that no
// answer keeps the requests of others waiting for long.
const maxPipeline = 500

// Answer is what a read of one of many keys came to.
type Answer[T any] struct {
	Value T
	Err   error
}

// LoadMany is Load for many keys, in their order, but asks no other master for what
// it does not find: one round trip to each node for every 500 of its keys. The nodes are asked side by side, so that one that
// is silent delays no other's answers but only the whole.
func (s *Store[V]) LoadMany(ctx context.Context, keys []string) []Loaded[V] {
	loaded := make([]Loaded[V], len(keys))
	for i, stored := range readMany(ctx, s, keys, s.layout.Read) {
		if stored.Err != nil {
			loaded[i] = Loaded[V]{Err: stored.Err}
			continue
		}
		loaded[i] = Loaded[V]{State: commit.State[V]{Value: stored.Value.Value(), Revision: stored.Value.Revision()}}
	}
	return loaded
}

// readMany reads many keys, in the way of [Store.LoadMany]. Read is as
// [Layout.Read].
func readMany[T, V any](
	ctx context.Context, s *Store[V], keys []string, read func(context.Context, redis.Cmdable, string) func() (T, error),
) []Answer[T] {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	r := reading[T, V]{s, read, keys, make([]Answer[T], len(keys))}
	var nodes sync.WaitGroup
	for node, part := range r.byNode(ctx) {
		nodes.Go(func() { r.readFrom(ctx, node, part) })
	}
	nodes.Wait()
	return r.answers
}

// reading is a readMany under way. Its parts are told by their places in keys.
type reading[T, V any] struct {
	*Store[V]
	read    func(context.Context, redis.Cmdable, string) func() (T, error)
	keys    []string
	answers []Answer[T] // in the order of keys
}

// byNode returns which keys to ask which node for. Those of which that is not
// known are for the client as a whole, which looks for the node.
func (r reading[T, V]) byNode(ctx context.Context) map[redis.UniversalClient][]int {
	parts := map[redis.UniversalClient][]int{}
	for i, key := range r.keys {
		node := r.client
		if master, err := r.nodes.masterOf(ctx, r.cfg.KeyPrefix+key); err == nil {
			node = master
		}
		parts[node] = append(parts[node], i)
	}
	return parts
}

// readFrom asks a node. What it does not answer is asked of the client as a
// whole, once: the key may have moved, or another node taken over.
func (r reading[T, V]) readFrom(ctx context.Context, node redis.UniversalClient, part []int) {
	for some := range slices.Chunk(part, maxPipeline) {
		r.ask(ctx, node, some)
		failed := slices.DeleteFunc(slices.Clone(some), func(i int) bool {
			return fault.KindOf(r.answers[i].Err) != fault.Unavailable
		})
		if len(failed) > 0 && node != r.client {
			r.ask(ctx, r.client, failed)
		}
	}
}

// ask asks for keys in one pipeline.
func (r reading[T, V]) ask(ctx context.Context, client redis.UniversalClient, part []int) {
	answers := make([]func() (T, error), len(part))
	// The pipeline's own error is that of one of the commands, or of none.
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n, i := range part {
			key := r.cfg.KeyPrefix + r.keys[i]
			switch {
			case !r.nodes.isCluster():
			case client == r.client: // each command finds its own node
				fence(ctx, p, key)
			case n%maxBehindFence == 0:
				fence(ctx, p)
			}
			answers[n] = r.read(ctx, p, key)
		}
		return nil
	})
	for n, i := range part {
		value, err := answers[n]()
		r.answers[i] = Answer[T]{value, r.checkError(err)}
	}
}
