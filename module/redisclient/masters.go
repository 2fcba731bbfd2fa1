package redisclient

import (
	"context"

	"github.com/redis/go-redis/v9"
)

func (p *Pipelines) isCluster() bool {
	_, isCluster := p.client.(*redis.ClusterClient)
	return isCluster
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

// newcomers are clients of nodes that the cluster client does not know, by address.
//
// CLUSTER SLOTS lists no master without slots, also while its first slot moves to it. The
// cluster client may close a node that it knows from a redirection only.
type newcomers map[string]*redis.Client

func (n newcomers) close() {
	for _, node := range n {
		_ = node.Close()
	}
}

// at returns the client of the node at an address in a redirection, or nil if the host's
// client itself follows redirections.
func (p *Pipelines) at(ctx context.Context, address string, known newcomers) *redis.Client {
	cluster, isCluster := p.client.(*redis.ClusterClient)
	if !isCluster {
		return nil
	}
	if node, found := clientsOf(ctx, cluster.ForEachShard)[address]; found {
		return node
	}
	if _, found := known[address]; !found {
		o := cluster.Options()
		known[address] = newNodeClient(o, address, o.PoolSize)
	}
	return known[address]
}

// Master returns the client of the master that serves a key, or nil if it is not known.
func (p *Pipelines) Master(ctx context.Context, key string) *redis.Client {
	node, err := p.masterOf(ctx, key)
	if err != nil {
		return nil
	}
	return node
}
