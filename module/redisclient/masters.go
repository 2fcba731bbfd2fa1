package redisclient

import (
	"context"

	"github.com/redis/go-redis/v9"
)

func (p *Pipelines) isCluster() bool {
	_, isCluster := p.client.(*redis.ClusterClient)
	return isCluster
}

func (p *Pipelines) add(node *redis.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.created[node.Options().Addr] = node
}

// masterOf returns the client of the master that serves a key, or nil if the host's
// client does not show its nodes.
func (p *Pipelines) masterOf(ctx context.Context, key string) (*redis.Client, error) {
	switch c := p.client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	}
	return nil, nil
}

// at returns a client of a cluster's node, nil if there is none, and makes the node
// known to the cluster client.
//
// ForEachShard skips a master without slots, also while its first slot moves to it. The
// cluster client knows such a master once a read was redirected to it.
func (p *Pipelines) at(ctx context.Context, address string) *redis.Client {
	cluster, isCluster := p.client.(*redis.ClusterClient)
	if !isCluster {
		return nil
	}
	if node, found := clientsOf(ctx, cluster.ForEachShard)[address]; found {
		return node
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.created[address]
}

// Master returns the client of the master that serves a key, or nil if it is not known.
func (p *Pipelines) Master(ctx context.Context, key string) *redis.Client {
	node, err := p.masterOf(ctx, key)
	if err != nil {
		return nil
	}
	return node
}
