// Package rulestore keeps each user's m.push_rules account-data event on
// Redis, as one JSON value. It works on a single node, behind sentinels and on
// a cluster, with any number of hosts on one Redis.
package rulestore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

var _ module.RuleStore = (*Store)(nil)

// Store is a [module.RuleStore] on Redis 6.2 or later. It is safe for
// concurrent use, does no I/O of its own accord, and needs no closing. Changes
// of one user that arrive at the same time are written together.
type Store struct{ events *rediscommit.Store[event] }

// New returns a store on client, which stays the caller's. The client must
// read from masters.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("rulestore: %w", err)
	}
	events, err := rediscommit.New(client, cfg.Redis, rediscommit.Layout[event]{
		Name:       "rulestore",
		Key:        key,
		Read:       cfg.read,
		Swap:       swapScript,
		Unreadable: pushrule.Unreadable,
	})
	return &Store{events}, err
}

// Load returns the stored rules; see [module.RuleStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (pushrule.Ruleset, bool, error) {
	e, err := s.events.Load(ctx, user)
	return e.rules, e.found, err
}

// Update replaces the stored rules; see [module.RuleStore].
func (s *Store) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) error {
	return s.events.Update(ctx, user, func(e *event) error {
		err := edit(&e.rules, e.found)
		e.found = true
		return err
	})
}
