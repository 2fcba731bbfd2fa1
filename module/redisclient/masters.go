// Package redisclient is what the module knows of the host's Redis client and of
// the servers behind it: settings that will hurt, health, and the masters.
package redisclient

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// EachMaster calls do with a client of each master, all at the same time, and
// returns the first error. A cluster client first asks a node which masters there
// are. Masters without slots are not among them.
func EachMaster(ctx context.Context, client redis.UniversalClient, do func(context.Context, *redis.Client) error) error {
	switch c := client.(type) {
	case *redis.Client:
		return do(ctx, c)
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, do)
	}
	return fmt.Errorf("a %T has no masters", client)
}
