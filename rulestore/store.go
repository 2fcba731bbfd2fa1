// Package rulestore keeps each user's m.push_rules account-data event on
// Redis, as one JSON value. It works on a single node, behind sentinels and on
// a cluster, with any number of hosts on one Redis.
package rulestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

var _ module.RuleStore = (*Store)(nil)

// Store is a [module.RuleStore] on Redis 6.2 or later. It is safe for
// concurrent use, does no I/O of its own accord, and needs no closing.
type Store struct {
	client redis.UniversalClient
	cfg    Config
	swap   *redis.Script
	settle *redis.Script
}

// New returns a store on client, which stays the caller's. The client must
// read from masters.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("rulestore: %w", err)
	}
	return &Store{client, cfg, redis.NewScript(swapScript), redis.NewScript(settleScript)}, nil
}

// swapScript replaces the event if it is what it was when it was read, and
// leaves a receipt of the write: a repetition of a write that took effect, by
// the client library or by us, changes nothing and succeeds. Values are opaque
// bytes to it.
//
// KEYS: the event, the receipts.
// ARGV: the write's id, the lifetime of receipts in seconds, the new event,
// and the event as it was read, which is left out where there was none.
const swapScript = `
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 1 end
if redis.call('ZSCORE', KEYS[2], '!' .. ARGV[1]) then return 0 end
if redis.call('GET', KEYS[1]) ~= (ARGV[4] or false) then return 0 end
redis.call('SET', KEYS[1], ARGV[3])
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1`

// settleScript tells whether a write took effect, and keeps one that did not
// from ever doing so.
//
// KEYS: the receipts. ARGV: the write's id, the lifetime of receipts in seconds.
const settleScript = `
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 1 end
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, '!' .. ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 0`

// Load returns the stored rules; see [module.RuleStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (pushrule.Ruleset, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	if err := user.Validate(); err != nil {
		return pushrule.Ruleset{}, false, fmt.Errorf("rulestore: %w", err)
	}
	_, e, err := s.read(ctx, user)
	return e.rules, e.found, err
}

// Update replaces the stored rules; see [module.RuleStore].
func (s *Store) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	if err := user.Validate(); err != nil {
		return fmt.Errorf("rulestore: %w", err)
	}
	err := commit.Until(ctx, func(ctx context.Context, w commit.Write) (bool, error) {
		return s.attempt(ctx, user, edit, w)
	})
	if err != nil && ctx.Err() != nil && fault.KindOf(err) == fault.Internal {
		return module.Unavailable(err)
	}
	return err
}

// attempt reads, edits and writes the event once.
func (s *Store) attempt(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error, w commit.Write,
) (done bool, err error) {
	old, e, err := s.read(ctx, user)
	if err != nil {
		return false, err
	}
	if w.Uncertain {
		if done, err := s.written(ctx, user, w.ID); done || err != nil {
			return done, err
		}
	}
	if err := edit(&e.rules, e.found); err != nil {
		return s.refuse(ctx, user, w, err)
	}
	text := e.text()
	if len(text) > s.cfg.MaxEventBytes && (old == nil || len(text) > len(*old)) {
		return s.refuse(ctx, user, w, fault.New(fault.TooLarge, fmt.Sprintf("Push rules larger than %d bytes.", s.cfg.MaxEventBytes)))
	}
	if old != nil && *old == text && !w.Again {
		return true, nil // nothing to write
	}
	return s.write(ctx, user, w.ID, old, text)
}

// read returns the stored text, nil where there is none, and what it says.
func (s *Store) read(ctx context.Context, user mxid.UserID) (*string, event, error) {
	text, err := s.client.Get(ctx, s.eventKey(user)).Result()
	if errors.Is(err, redis.Nil) {
		return nil, event{}, nil
	}
	if err != nil {
		return nil, event{}, failed("read the event", err)
	}
	e, err := readEvent(text)
	return &text, e, err
}

// write puts text in the place of old; done is false where old is no longer
// there.
func (s *Store) write(ctx context.Context, user mxid.UserID, id string, old *string, text string) (done bool, err error) {
	args := []any{id, int(receiptLifetime.Seconds()), text}
	if old != nil {
		args = append(args, *old)
	}
	done, err = s.swap.Run(ctx, s.client, []string{s.eventKey(user), s.receiptsKey(user)}, args...).Bool()
	return done, failed("write the event", err)
}

// written reports whether the write of an id has taken effect. It is asked
// after reading: without a receipt, what was read is older than the write.
func (s *Store) written(ctx context.Context, user mxid.UserID, id string) (bool, error) {
	err := s.client.ZScore(ctx, s.receiptsKey(user), id).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, failed("look for the write's receipt", err)
}

// refuse gives the answer to a change that err refuses. Where an earlier
// attempt of it took effect, the answer is that one's: the change is done.
func (s *Store) refuse(ctx context.Context, user mxid.UserID, w commit.Write, refusal error) (done bool, err error) {
	if !w.Again {
		return false, refusal
	}
	done, err = s.settle.Run(ctx, s.client, []string{s.receiptsKey(user)}, w.ID, int(receiptLifetime.Seconds())).Bool()
	switch {
	case err != nil:
		return false, failed("settle the write", err)
	case done:
		return true, nil
	}
	return false, refusal
}

// failed turns an error of the client into one of the store.
func failed(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return pushrule.Unreadable(errors.New("the key holds another type of value"))
	}
	return module.Unavailable(fmt.Errorf("rulestore: %s: %w", doing, err))
}
