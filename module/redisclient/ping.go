package redisclient

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// noNodes is the error of go-redis for a cluster whose nodes have no slots, which has no
// name there.
const noNodes = "redis: cluster has no nodes"

// Ping checks that Redis answers before ctx ends, also if the client ignores
// ctx; the client's own timeouts end the command then.
func Ping(ctx context.Context, client redis.UniversalClient) error {
	answer := make(chan error, 1)
	go func() { answer <- client.Ping(ctx).Err() }()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil && err.Error() == noNodes {
		return fmt.Errorf("the cluster at %s is not created yet: no node has slots (%w)", Address(client), err)
	}
	if err != nil {
		return fmt.Errorf("the Redis at %s does not answer: %w", Address(client), err)
	}
	return nil
}

// Address returns where a client connects to, for logs.
func Address(client redis.UniversalClient) string {
	switch c := client.(type) {
	case *redis.Client:
		if address := c.Options().Addr; address != sentinelAddr {
			return address
		}
		return "the address that the sentinels tell"
	case *redis.ClusterClient:
		return strings.Join(c.Options().Addrs, ",")
	}
	return fmt.Sprintf("%T", client)
}
