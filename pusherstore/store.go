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
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.PusherStore = (*Store)(nil)

// Store is a [module.PusherStore] on Redis 6.2 or later. It is safe for
// concurrent use, does no I/O of its own accord, and needs no closing. Changes
// of one user take turns.
type Store struct {
	hashes *rediscommit.Users[pusher.List]
	fields *rediscommit.Store[pusher.List] // the same hashes, field by field
	sized  *rediscommit.Store[pusher.List] // likewise, with the size of the others
}

// New returns a store on client, which stays the caller's. The client must
// read from masters.
func New(client redis.UniversalClient, cfg rediscommit.Config, o rediscommit.Options) (*Store, error) {
	layout := rediscommit.Layout[pusher.List]{
		Name:       "pusherstore",
		Observed:   observe.Pushers,
		Read:       read,
		Swap:       swapScript,
		Unreadable: pusher.Unreadable,
		Missing:    storedHash{},
	}
	hashes, err := rediscommit.New(client, cfg, o, layout)
	if err != nil {
		return nil, err
	}
	layout.Read, layout.RedisKey, layout.Missing = readOne, hashOf, nil
	fields := hashes.View(layout)
	layout.Read = readSized
	return &Store{rediscommit.NewUsers(hashes, stored.Keys{}.Pushers), fields, hashes.View(layout)}, nil
}

// Load returns the stored pushers; see [module.PusherStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	state, err := s.hashes.Load(ctx, user)
	return state.Value, err
}

// LoadMany returns the stored pushers of many users; see [module.PusherStore].
// It takes one round trip to each node for every 500 users.
func (s *Store) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	return results(s.hashes.LoadMany(ctx, users))
}

func results(loaded map[mxid.UserID]rediscommit.Loaded[pusher.List]) map[mxid.UserID]module.Result[pusher.List] {
	all := make(map[mxid.UserID]module.Result[pusher.List], len(loaded))
	for user, l := range loaded {
		all[user] = module.Result[pusher.List]{Value: l.Value, Err: l.Err}
	}
	return all
}

// Update replaces the stored pushers; see [module.PusherStore].
func (s *Store) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	_, err := s.hashes.Update(ctx, user, edit)
	return err
}

// Delete removes what is stored for a user; see [module.PusherStore].
func (s *Store) Delete(ctx context.Context, user mxid.UserID) error {
	return s.hashes.Remove(ctx, user)
}
