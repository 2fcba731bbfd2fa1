package rediscommit

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
)

// Parts returns the users of each master, in their order. KeyOf returns a key of a user.
func Parts(ctx context.Context, p *redisclient.Pipelines, users []mxid.UserID, keyOf func(mxid.UserID) string) (parts [][]mxid.UserID) {
	numbers := map[*redis.Client]int{}
	for _, user := range users {
		master := p.Master(ctx, keyOf(user))
		n, known := numbers[master]
		if !known {
			n = len(parts)
			numbers[master], parts = n, append(parts, nil)
		}
		parts[n] = append(parts[n], user)
	}
	return parts
}
