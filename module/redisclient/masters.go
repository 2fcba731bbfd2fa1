package redisclient

import (
	"context"
	"errors"
	"slices"
	"sync"

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

// ListedMasters returns clients of all masters that a cluster's masters list, also of
// masters without slots, which may have keys since a move was interrupted. It leaves out
// failed masters without slots, whose slots another master has. It adds the clients that
// it creates to created, by address; the caller closes these. A client of a single server
// is returned as it is.
func ListedMasters(ctx context.Context, client redis.UniversalClient, created map[string]*redis.Client) (masters []*redis.Client, err error) {
	cluster, isCluster := client.(*redis.ClusterClient)
	if !isCluster {
		return singleMaster(client)
	}
	var mu sync.Mutex
	var nodes []*listed
	known := map[string]*redis.Client{}
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		text, err := master.ClusterNodes(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		known[master.Options().Addr] = master
		nodes = union(nodes, readNodes(text))
		return err
	})
	if len(nodes) == 0 {
		return nil, errors.Join(err, errors.New("no master lists the nodes of the cluster"))
	}
	for _, n := range nodes {
		if n.is("master") && (n.hasSlots || !n.is("fail")) {
			masters = append(masters, clientAt(ctx, cluster, n, known, created))
		}
	}
	return masters, nil
}

func singleMaster(client redis.UniversalClient) ([]*redis.Client, error) {
	if c, isSingle := client.(*redis.Client); isSingle {
		return []*redis.Client{c}, nil
	}
	return nil, errors.New("the client does not show its masters")
}

// clientAt returns a client of a node at the first of its addresses that replies, or else
// at the first one.
func clientAt(ctx context.Context, cluster *redis.ClusterClient, n *listed, known, created map[string]*redis.Client) *redis.Client {
	for _, clients := range []map[string]*redis.Client{known, created} {
		for _, address := range n.addresses {
			if client, found := clients[address]; found {
				return client
			}
		}
	}
	o := cluster.Options()
	address := n.addresses[0]
	if i := slices.IndexFunc(n.addresses, func(address string) bool {
		client := newNodeClient(o, address, 1)
		defer client.Close()
		return !lacksReply(try(ctx, client, func(ctx context.Context, client *redis.Client) error { return client.Ping(ctx).Err() }))
	}); i >= 0 {
		address = n.addresses[i]
	}
	created[address] = newNodeClient(o, address, o.PoolSize)
	return created[address]
}
