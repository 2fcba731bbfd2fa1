// Package pusherstore keeps the pushers of each user on Redis, as one hash. It works on
// a single node, behind sentinels and on a cluster, with any number of hosts.
package pusherstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

var (
	_ module.PusherStore   = (*Store)(nil)
	_ module.PusherWatcher = (*Store)(nil)
)

// Store is a [module.PusherStore] on Redis 6.2 or later. It is safe for concurrent use,
// does I/O in the background only during [Store.Watch], and needs no closing. Changes
// of one user wait for each other.
type Store struct {
	encoder
	client redis.UniversalClient
	hashes *rediscommit.Users[pusher.List, fields]
}

// New returns a store on client, which must read from masters. The caller closes the
// client.
func New(client redis.UniversalClient, cfg rediscommit.Config, o rediscommit.Options) (*Store, error) {
	e := encoder{stored.Keys{Prefix: cfg.KeyPrefix}.PusherChannel()}
	hashes, err := rediscommit.New(client, cfg, o, e.hashCodec())
	if err != nil {
		return nil, err
	}
	return &Store{e, client, rediscommit.NewUsers(hashes, stored.Keys{}.Pushers)}, nil
}

// Load returns the stored pushers; see [module.PusherStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	now, err := s.hashes.Load(ctx, user)
	return now.Value, err
}

// LoadMany returns the stored pushers of many users, with one round trip to each node
// for every 500 users; see [module.PusherStore].
func (s *Store) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	loaded := s.hashes.LoadMany(ctx, users)
	all := make(map[mxid.UserID]module.Result[pusher.List], len(loaded))
	for user, result := range loaded {
		all[user] = module.Result[pusher.List]{Value: result.Value.Value, Err: result.Err}
	}
	return all
}

// Update replaces the stored pushers; see [module.PusherStore].
func (s *Store) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	_, err := s.hashes.Update(ctx, user, edit)
	return err
}

// Delete removes a user's pushers, readable or not; see [module.PusherStore].
func (s *Store) Delete(ctx context.Context, user mxid.UserID) error {
	return s.hashes.Remove(ctx, user)
}
