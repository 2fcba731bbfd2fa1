// Package pusherstore keeps each user's pushers on Redis, in one hash per
// user. It works on a single node, behind sentinels and on a cluster, with any
// number of hosts on one Redis.
package pusherstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
// of one user that arrive at the same time are written together.
type Store struct {
	hashes *rediscommit.Users[pusher.List]
	fields *rediscommit.Store[pusher.List] // the same hashes, field by field
	client redis.UniversalClient
	cfg    rediscommit.Config
	size   *redis.Script
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
	}
	hashes, err := rediscommit.New(client, cfg, o, layout)
	if err != nil {
		return nil, err
	}
	layout.Read, layout.RedisKey = readOne, hashOf
	return &Store{rediscommit.NewUsers(hashes, stored.Keys{}.Pushers), hashes.View(layout), client, cfg, redis.NewScript(sizeScript)}, nil
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

// sizeScript returns how many fields a hash has beside one, and the bytes that
// they and their values take.
//
// ARGV: the one.
const sizeScript = `
local pushers, bytes = 0, 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
	if field ~= ARGV[1] then
		pushers = pushers + 1
		bytes = bytes + #field + redis.call('HSTRLEN', KEYS[1], field)
	end
end
return {pushers, bytes}`

// maxSizeTries is how often the size is asked for if replies get lost. The host's
// client may not repeat commands by itself.
const maxSizeTries = 3

// Size returns the size of the stored pushers; see [module.PusherStore].
func (s *Store) Size(ctx context.Context, user mxid.UserID) (pusher.Size, error) {
	if err := user.Validate(); err != nil {
		return pusher.Size{}, fmt.Errorf("pusherstore: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	key := stored.Keys{Prefix: s.cfg.KeyPrefix}.Pushers(user)
	var size []int64
	var err error
	for range maxSizeTries {
		size, err = s.size.Run(ctx, s.client, []string{key}, stored.RevisionField).Int64Slice()
		var refusal redis.Error
		if err == nil || errors.As(err, &refusal) || ctx.Err() != nil {
			break
		}
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "WRONGTYPE"): // within what scripts say, in other words by each server
		return pusher.Size{}, pusher.Unreadable(errors.New("the key holds another type of value"))
	case err != nil:
		return pusher.Size{}, module.Unavailable(fmt.Errorf("pusherstore: size: %w", err))
	case len(size) != 2:
		return pusher.Size{}, module.Unavailable(fmt.Errorf("pusherstore: size: %d numbers", len(size)))
	}
	return pusher.Size{Pushers: int(size[0]), Bytes: int(size[1])}, nil
}

// Delete removes what is stored for a user; see [module.PusherStore].
func (s *Store) Delete(ctx context.Context, user mxid.UserID) error {
	return s.hashes.Remove(ctx, user)
}
