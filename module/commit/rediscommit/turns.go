package rediscommit

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// turns leaves most of each node's connections to those who do not wait for
// replicas or a disk: each wait holds a connection, and when a replica is gone,
// all changes wait. A store takes a quarter, and a host has two.
type turns struct {
	mu    sync.Mutex
	nodes map[string]chan struct{} // by address; as many as the cluster has had
}

// take waits for a turn on a node, which ends with release.
func (t *turns) take(ctx context.Context, node *redis.Client) (release func(), err error) {
	turn := t.of(node.Options())
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("other changes wait for their durability: %w", ctx.Err())
	}
}

func (t *turns) of(node *redis.Options) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	turn, found := t.nodes[node.Addr]
	if !found {
		if t.nodes == nil {
			t.nodes = map[string]chan struct{}{}
		}
		turn = make(chan struct{}, max(1, node.PoolSize/4))
		t.nodes[node.Addr] = turn
	}
	return turn
}
