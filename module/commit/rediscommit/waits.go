package rediscommit

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Waits leave half of a client's connections to each node to those who do not wait
// for replicas or a disk: each wait holds a connection, and when a replica is gone,
// all changes wait. All stores on one client share them; see [Options]. The zero
// value is ready. They are safe for concurrent use.
type Waits struct {
	mu    sync.Mutex
	nodes map[string]chan struct{} // by address; as many as the cluster has had
}

// acquire waits for a place on a node, which release gives back.
func (w *Waits) acquire(ctx context.Context, node *redis.Client) (release func(), err error) {
	places := w.of(node.Options())
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("other changes wait for their durability: %w", ctx.Err())
	}
}

func (w *Waits) of(node *redis.Options) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	places, found := w.nodes[node.Addr]
	if !found {
		if w.nodes == nil {
			w.nodes = map[string]chan struct{}{}
		}
		places = make(chan struct{}, max(1, node.PoolSize/2))
		w.nodes[node.Addr] = places
	}
	return places
}
