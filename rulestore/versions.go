package rulestore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// Versions returns the versions of many users' rules; see [module.RuleStore]. It reads
// whole events only if their end has no revision.
func (s *Store) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	all := make(map[mxid.UserID]module.Result[int64], len(users))
	var others []mxid.UserID
	for user, tail := range rediscommit.ReadMany(ctx, s.events, users, readTail) {
		version := stored.VersionAtEnd(tail.Value)
		switch {
		case tail.Err != nil, tail.Value == "", version > 0:
			all[user] = module.Result[int64]{Value: version, Err: tail.Err}
		default:
			others = append(others, user)
		}
	}
	for user, loaded := range s.LoadMany(ctx, others) {
		all[user] = module.Result[int64]{Value: loaded.Value.Version, Err: loaded.Err}
	}
	return all
}

var readTail = rediscommit.Query[string]{
	Ask: func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
		return client.GetRange(ctx, key, -stored.RevisionTail, -1)
	},
	Read: func(_ string, answer redis.Cmder) (string, error) {
		text, _, err := rediscommit.Text(answer)
		return text, err
	},
}
