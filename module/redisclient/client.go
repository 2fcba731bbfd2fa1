// Package redisclient is the way to the host's Redis; its API may change at any time,
// except [Config], [Clock] and [Durability]. It sends commands, and checks the client's
// settings, health, the clock, and the masters.
package redisclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// EachMaster calls do concurrently for each master, except masters without slots, and
// returns the first error. A client of an unknown type counts as a single master.
func EachMaster(ctx context.Context, client redis.UniversalClient, do func(context.Context, redis.UniversalClient) error) error {
	if c, isCluster := client.(*redis.ClusterClient); isCluster {
		return c.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return do(ctx, master) })
	}
	return do(ctx, client)
}

// noNodes is the untyped go-redis error for a cluster without slots.
const noNodes = "redis: cluster has no nodes"

// noCluster is within the error of a server that is not a node of a cluster.
const noCluster = "cluster support disabled"

// ping checks that Redis replies before ctx ends, even if the client ignores ctx.
func ping(ctx context.Context, client redis.UniversalClient) error {
	reply := make(chan error, 1)
	go func() { reply <- client.Ping(ctx).Err() }()
	var err error
	select {
	case err = <-reply:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return pingError(address(client), err)
}

// pingError says what an error of PING means.
func pingError(address string, err error) error {
	var reply redis.Error
	switch {
	case err == nil:
		return nil
	case err.Error() == noNodes:
		return fmt.Errorf("the cluster at %s is not created yet: no node has slots (%w)", address, err)
	case strings.Contains(err.Error(), noCluster):
		return fmt.Errorf("the Redis at %s %w", address, errNoClusterNode)
	case errors.As(err, &reply):
		return fmt.Errorf("the Redis at %s refuses: %w", address, err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the Redis at %s closes the connection, as a TLS port does to a client without TLSConfig: %w", address, err)
	}
	return fmt.Errorf("the Redis at %s does not answer: %w", address, err)
}

func address(client redis.UniversalClient) string {
	switch c := client.(type) {
	case *redis.Client:
		if address := c.Options().Addr; address != sentinelAddr {
			return address
		}
		return "the address from the sentinels"
	case *redis.ClusterClient:
		return strings.Join(c.Options().Addrs, ",")
	}
	return fmt.Sprintf("%T", client)
}

const slots = 1 << 14

// SlotOf returns the hash slot of a key: CRC16 (XMODEM) of its hash tag, or of the
// whole key without one.
func SlotOf(key string) int {
	if _, rest, opened := strings.Cut(key, "{"); opened {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc % slots)
}
