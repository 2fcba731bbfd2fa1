package rediscommit

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// nodes finds the clients of single nodes behind a client.
type nodes struct {
	client redis.UniversalClient
	waits  *WaitLimiter

	mu  sync.Mutex
	new map[string]*redis.Client // those that a cluster client has made, by address
}

func newNodes(client redis.UniversalClient, waits *WaitLimiter) *nodes {
	if waits == nil {
		waits = new(WaitLimiter)
	}
	return &nodes{client: client, waits: waits, new: map[string]*redis.Client{}}
}

func (n *nodes) isCluster() bool {
	_, isCluster := n.client.(*redis.ClusterClient)
	return isCluster
}

// watch has a cluster client tell of the clients that it makes.
func (n *nodes) watch() {
	if cluster, isCluster := n.client.(*redis.ClusterClient); isCluster {
		cluster.OnNewNode(n.add)
	}
}

func (n *nodes) add(node *redis.Client) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.new[node.Options().Addr] = node
}

// masterOf returns a client of the node that has the key.
func (n *nodes) masterOf(ctx context.Context, key string) (*redis.Client, error) {
	switch c := n.client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	}
	return nil, fmt.Errorf("a %T has no masters", n.client)
}

// at returns a client of a cluster's node, nil if there is none. It asks the
// cluster for its nodes, so that the client knows of the change from then on.
//
// A master without slots is not among them, though its first slot may be on the
// way to it. But then the cluster client has been sent to it as well, with the
// read that came before.
func (n *nodes) at(ctx context.Context, address string) *redis.Client {
	cluster, isCluster := n.client.(*redis.ClusterClient)
	if !isCluster {
		return nil
	}
	found := make(chan *redis.Client, 1)
	// What fails for one node does not matter for the others.
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
	return n.new[address]
}

// reload has a cluster client load the cluster's nodes and slots again, because a
// node may be gone; by itself the client does so only after some time. It works in
// the background, at most five times a second.
func (n *nodes) reload() {
	if cluster, isCluster := n.client.(*redis.ClusterClient); isCluster {
		cluster.ReloadState(context.Background())
	}
}
