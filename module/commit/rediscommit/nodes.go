package rediscommit

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
)

type nodes struct {
	client redis.UniversalClient
	waits  *WaitLimiter
	moves  *redisclient.Moves

	mu      sync.Mutex
	created map[string]*redis.Client // by the cluster client, by address
}

func newNodes(client redis.UniversalClient, waits *WaitLimiter) *nodes {
	if waits == nil {
		waits = new(WaitLimiter)
	}
	return &nodes{client: client, waits: waits, moves: redisclient.NewMoves(client), created: map[string]*redis.Client{}}
}

func (n *nodes) isCluster() bool {
	_, isCluster := n.client.(*redis.ClusterClient)
	return isCluster
}

func (n *nodes) watch() {
	if cluster, isCluster := n.client.(*redis.ClusterClient); isCluster {
		cluster.OnNewNode(n.add)
	}
}

func (n *nodes) add(node *redis.Client) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.created[node.Options().Addr] = node
}

func (n *nodes) masterOf(ctx context.Context, key string) (*redis.Client, error) {
	switch c := n.client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	}
	return nil, fmt.Errorf("a %T has no masters", n.client)
}

// at returns a client of a cluster's node, nil if there is none, and makes the node
// known to the cluster client.
//
// ForEachShard skips a master without slots, also while its first slot moves to it. The
// cluster client knows such a master once a read was redirected to it.
func (n *nodes) at(ctx context.Context, address string) *redis.Client {
	cluster, isCluster := n.client.(*redis.ClusterClient)
	if !isCluster {
		return nil
	}
	found := make(chan *redis.Client, 1)
	// One node's error does not matter for the others.
	_ = cluster.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		if node.Options().Addr == address {
			select {
			case found <- node:
			default:
			}
		}
		return nil
	})
	select {
	case node := <-found:
		return node
	default:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.created[address]
}

// reload makes a cluster client load the topology again, in the background and at most
// five times a second, because a node may have failed.
func (n *nodes) reload() {
	if cluster, isCluster := n.client.(*redis.ClusterClient); isCluster {
		cluster.ReloadState(context.Background())
	}
}
