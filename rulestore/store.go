// Package rulestore keeps the m.push_rules event of each user on Redis, as one JSON
// value. It works on a single node, behind sentinels and on a cluster, with any number
// of hosts.
package rulestore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.RuleStore = (*Store)(nil)

// Store is a [module.RuleStore] on Redis 6.2 or later. It is safe for concurrent use,
// does I/O in the background only during [Store.Watch], and needs no closing. Changes
// of one user wait for each other.
type Store struct {
	events  *rediscommit.Users[stored.Event, string]
	client  redis.UniversalClient
	channel string
	now     func() time.Time // the clock of versions
}

// New returns a store on client, which must read from masters. The caller closes the
// client.
func New(client redis.UniversalClient, cfg rediscommit.Config, o rediscommit.Options) (*Store, error) {
	now := o.Now
	if now == nil {
		now = time.Now
	}
	encoder := encoder{stored.Keys{Prefix: cfg.KeyPrefix}.Channel()}
	events, err := rediscommit.New(client, cfg, o, newCodec(encoder))
	if err != nil {
		return nil, err
	}
	return &Store{events: rediscommit.NewUsers(events, stored.Keys{}.Rules), client: client, channel: encoder.channel, now: now}, nil
}

// Load returns the stored rules; see [module.RuleStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	now, err := s.events.Load(ctx, user)
	return content(now), err
}

// LoadMany returns the stored rules of many users, with one round trip to each node for
// every 500 users; see [module.RuleStore].
func (s *Store) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	all := make(map[mxid.UserID]module.Result[module.Content], len(users))
	for user, loaded := range s.events.LoadMany(ctx, users) {
		all[user] = module.Result[module.Content]{Value: content(loaded.Value), Err: loaded.Err}
	}
	return all
}

// Update replaces the stored rules; see [module.RuleStore].
func (s *Store) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (module.Content, error) {
	now, err := s.events.Update(ctx, user, func(e *stored.Event) error {
		err := edit(&e.Rules, e.Found)
		e.Found = true
		return err
	})
	return content(now), err
}

// Delete removes a user's event, readable or not; see [module.RuleStore].
func (s *Store) Delete(ctx context.Context, user mxid.UserID) error {
	return s.events.Remove(ctx, user)
}

func content(now snapshot) module.Content {
	e := now.Value
	if !e.Found {
		return module.Content{}
	}
	return module.Content{Rules: e.Rules, Extra: e.ContentExtra, Version: e.Version()}
}
