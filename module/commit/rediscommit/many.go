package rediscommit

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
)

// maxPipeline bounds the keys of one round trip, so that a long reply does not delay
// other requests.
const maxPipeline = 500

// Result is the value of one key, or the error of its read.
type Result[T any] struct {
	Value T
	Err   error
}

// readMany sends a query for many keys and returns the results in their order.
func readMany[T, V, R any](ctx context.Context, s *Store[V, R], keys []string, q Query[T]) []Result[T] {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	r := batchRead[T, V, R]{s, q, keys, make([]Result[T], len(keys))}
	var nodes sync.WaitGroup
	for node, part := range r.byNode(ctx) {
		nodes.Go(func() { r.readFrom(ctx, node, part) })
	}
	nodes.Wait()
	return r.results
}

// batchRead is a readMany in progress. Its methods take indexes into keys.
type batchRead[T, V, R any] struct {
	*Store[V, R]
	query   Query[T]
	keys    []string
	results []Result[T]
}

// byNode groups the keys by node. Keys whose node is unknown go to the cluster client.
func (r batchRead[T, V, R]) byNode(ctx context.Context) map[redis.UniversalClient][]int {
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

// readFrom asks a node. It asks once more by the cluster client for keys without a
// reply, because they may have moved, or another node may have taken over.
func (r batchRead[T, V, R]) readFrom(ctx context.Context, node redis.UniversalClient, part []int) {
	for some := range slices.Chunk(part, maxPipeline) {
		r.ask(ctx, node, some)
		failed := slices.DeleteFunc(slices.Clone(some), func(i int) bool {
			return fault.KindOf(r.results[i].Err) != fault.Unavailable
		})
		if len(failed) > 0 && node != r.client {
			r.ask(ctx, r.client, failed)
		}
	}
}

func (r batchRead[T, V, R]) ask(ctx context.Context, client redis.UniversalClient, part []int) {
	answers := make([]redis.Cmder, len(part))
	// Each command has its own error.
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n, i := range part {
			key := r.cfg.KeyPrefix + r.keys[i]
			switch {
			case !r.nodes.isCluster():
			case client == r.client: // the client sends each command to its key's node
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
		r.results[i] = Result[T]{value, r.checkError(err)}
	}
}
