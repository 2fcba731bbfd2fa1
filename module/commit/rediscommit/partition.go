package rediscommit

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
)

// Partition returns the users of each master, in their order. KeyOf returns a key of a user.
func Partition(ctx context.Context, p *redisclient.Pipelines, users []mxid.UserID, keyOf func(mxid.UserID) string) (partitions [][]mxid.UserID) {
	numbers := map[*redis.Client]int{}
	for _, user := range users {
		master := p.Master(ctx, keyOf(user))
		n, known := numbers[master]
		if !known {
			n = len(partitions)
			numbers[master], partitions = n, append(partitions, nil)
		}
		partitions[n] = append(partitions[n], user)
	}
	return partitions
}
