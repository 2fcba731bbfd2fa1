package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/redisclient"
)

// master is a server with keys of its own.
type master struct {
	client *redis.Client
	id     string // of the server's run: a cursor is good only as long as it lasts
}

// masters returns the masters there are, in the order of their addresses.
func (b *backend) masters(ctx context.Context) (masters []master, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	var mu sync.Mutex
	err = redisclient.EachMaster(ctx, b.client, func(ctx context.Context, client *redis.Client) error {
		info, err := client.Info(ctx, "server").Result()
		if err != nil {
			return fmt.Errorf("INFO on %s: %w", b.addressOf(client), err)
		}
		_, rest, _ := strings.Cut(info, "\r\nrun_id:")
		id, _, _ := strings.Cut(rest, "\r\n")
		mu.Lock()
		defer mu.Unlock()
		masters = append(masters, master{client, id})
		return nil
	})
	slices.SortFunc(masters, func(a, b master) int {
		return strings.Compare(a.client.Options().Addr, b.client.Options().Addr)
	})
	return masters, err
}

// layout tells which master has which slots; it is empty if there are none.
func (b *backend) layout(ctx context.Context) (string, error) {
	cluster, isCluster := b.client.(*redis.ClusterClient)
	if !isCluster {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	nodes, err := cluster.ClusterNodes(ctx).Result()
	if err != nil {
		return "", fmt.Errorf("CLUSTER NODES: %w", err)
	}
	var parts []string
	for line := range strings.Lines(nodes) {
		fields := strings.Fields(line) // id, address, flags, five more, and the slots
		if len(fields) <= 8 || !strings.Contains(fields[2], "master") {
			continue
		}
		own := slices.DeleteFunc(fields[8:], func(s string) bool { return strings.HasPrefix(s, "[") }) // those on their way
		parts = append(parts, fields[0]+" "+strings.Join(own, " "))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", "), nil
}

// size is about how many keys there are, those of others included; 0 if the
// login may not ask.
func (b *backend) size(ctx context.Context, masters []master) (n int64) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	for _, m := range masters {
		size, err := m.client.DBSize(ctx).Result()
		if err != nil {
			return 0
		}
		n += size
	}
	return n
}

// addressOf is where a node is, or what the sentinels call it.
func (b *backend) addressOf(node *redis.Client) string {
	if b.servers.Mode == redisurl.Sentinel {
		return "master " + b.servers.Master
	}
	return node.Options().Addr
}

// nodeOf returns the master that has a key.
func (b *backend) nodeOf(ctx context.Context, key string) (*redis.Client, error) {
	switch client := b.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		return client.MasterForKey(ctx, key)
	}
	return nil, fmt.Errorf("a %T has no masters", b.client)
}
