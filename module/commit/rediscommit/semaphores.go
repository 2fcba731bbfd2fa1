package rediscommit

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// semaphores leave most of each node's connections to those who do not wait for
// replicas or a disk: each wait holds a connection, and when a replica is gone,
// all changes wait. A store takes a quarter, and a host has two.
type semaphores struct {
	mu    sync.Mutex
	nodes map[string]chan struct{} // by address; as many as the cluster has had
}

// acquire waits for a place on a node, which release gives back.
func (s *semaphores) acquire(ctx context.Context, node *redis.Client) (release func(), err error) {
	places := s.of(node.Options())
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("other changes wait for their durability: %w", ctx.Err())
	}
}

func (s *semaphores) of(node *redis.Options) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	places, found := s.nodes[node.Addr]
	if !found {
		if s.nodes == nil {
			s.nodes = map[string]chan struct{}{}
		}
		places = make(chan struct{}, max(1, node.PoolSize/4))
		s.nodes[node.Addr] = places
	}
	return places
}
