// Package pusherstore keeps each user's pushers on Redis, in one hash per
// user. It works on a single node, behind sentinels and on a cluster, with any
// number of hosts on one Redis.
package pusherstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ module.PusherStore = (*Store)(nil)

// Store is a [module.PusherStore] on Redis 6.2 or later. It is safe for
// concurrent use, does no I/O of its own accord, and needs no closing. Changes
// of one user that arrive at the same time are written together.
type Store struct {
	hashes *rediscommit.Store[pusher.List]
}

// New returns a store on client, which stays the caller's. The client must
// read from masters.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	hashes, err := rediscommit.New(client, cfg.Redis, rediscommit.Layout[pusher.List]{
		Name:       "pusherstore",
		Key:        key,
		Read:       read,
		Swap:       swapScript,
		Unreadable: pusher.Unreadable,
	})
	return &Store{hashes}, err
}

// Load returns the stored pushers; see [module.PusherStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	return s.hashes.Load(ctx, user)
}

// Update replaces the stored pushers; see [module.PusherStore].
func (s *Store) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	return s.hashes.Update(ctx, user, edit)
}
