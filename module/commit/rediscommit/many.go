package rediscommit

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

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

// readMany sends a query for many keys, in the way of [Users.LoadMany]. The answers are in
// the order of the keys.
func readMany[T, V, R any](ctx context.Context, s *Store[V, R], keys []string, q Query[T]) []Answer[T] {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	r := reading[T, V, R]{s, q, keys, make([]Answer[T], len(keys))}
	var nodes sync.WaitGroup
	for node, part := range r.byNode(ctx) {
		nodes.Go(func() { r.readFrom(ctx, node, part) })
	}
	nodes.Wait()
	return r.answers
}

// reading is a readMany under way. A part of it is a list of places in keys.
type reading[T, V, R any] struct {
	*Store[V, R]
	query   Query[T]
	keys    []string
	answers []Answer[T]
}

// byNode groups the keys by their nodes. Keys whose node is unknown go to the cluster
// client, which finds it.
func (r reading[T, V, R]) byNode(ctx context.Context) map[redis.UniversalClient][]int {
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
func (r reading[T, V, R]) readFrom(ctx context.Context, node redis.UniversalClient, part []int) {
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
func (r reading[T, V, R]) ask(ctx context.Context, client redis.UniversalClient, part []int) {
	answers := make([]redis.Cmder, len(part))
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
			answers[n] = r.query.Ask(ctx, p, key)
		}
		return nil
	})
	for n, i := range part {
		value, err := r.query.Read(r.cfg.KeyPrefix+r.keys[i], answers[n])
		r.answers[i] = Answer[T]{value, r.checkError(err)}
	}
}
