// Package pusherstore keeps each user's pushers on Redis, in one hash per
// user. It works on a single node, behind sentinels and on a cluster, with any
// number of hosts on one Redis.
package pusherstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ module.PusherStore = (*Store)(nil)

// Store is a [module.PusherStore] on Redis 6.2 or later. It is safe for
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
		return nil, fmt.Errorf("pusherstore: %w", err)
	}
	return &Store{client, cfg, redis.NewScript(swapScript), redis.NewScript(settleScript)}, nil
}

// swapScript changes the hash if it is what it was when it was read, and
// leaves a receipt of the write: a repetition of a write that took effect, by
// the client library or by us, changes nothing and succeeds. Values are opaque
// bytes to it.
//
// KEYS: the pushers, the receipts.
// ARGV: the write's id, the lifetime of receipts in seconds, the number of
// fields as they were read, each field and its value, the number of fields to
// delete, each of them, and each field to set with its value.
const swapScript = `
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 1 end
if redis.call('ZSCORE', KEYS[2], '!' .. ARGV[1]) then return 0 end
local at = 4
local fields = tonumber(ARGV[3])
if redis.call('HLEN', KEYS[1]) ~= fields then return 0 end
for i = 1, fields do
	if redis.call('HGET', KEYS[1], ARGV[at]) ~= ARGV[at + 1] then return 0 end
	at = at + 2
end
local deletes = tonumber(ARGV[at])
for i = 1, deletes do redis.call('HDEL', KEYS[1], ARGV[at + i]) end
at = at + deletes + 1
while at < #ARGV do
	redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
	at = at + 2
end
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

// Load returns the stored pushers; see [module.PusherStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	if err := user.Validate(); err != nil {
		return pusher.List{}, fmt.Errorf("pusherstore: %w", err)
	}
	_, list, err := s.read(ctx, user)
	return list, err
}

// Update replaces the stored pushers; see [module.PusherStore].
func (s *Store) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	if err := user.Validate(); err != nil {
		return fmt.Errorf("pusherstore: %w", err)
	}
	err := commit.Until(ctx, func(ctx context.Context, w commit.Write) (bool, error) {
		return s.attempt(ctx, user, edit, w)
	})
	if err != nil && ctx.Err() != nil && fault.KindOf(err) == fault.Internal {
		return module.Unavailable(err)
	}
	return err
}

// attempt reads, edits and writes the pushers once.
func (s *Store) attempt(
	ctx context.Context, user mxid.UserID, edit func(*pusher.List) error, w commit.Write,
) (done bool, err error) {
	old, list, err := s.read(ctx, user)
	if err != nil {
		return false, err
	}
	if w.Uncertain {
		if done, err := s.written(ctx, user, w.ID); done || err != nil {
			return done, err
		}
	}
	if err := edit(&list); err != nil {
		return s.refuse(ctx, user, w, err)
	}
	deletes, sets := difference(old, list)
	if len(deletes) == 0 && len(sets) == 0 && !w.Again {
		return true, nil // nothing to write
	}
	return s.write(ctx, user, w.ID, old, deletes, sets)
}

// read returns the stored fields and the pushers that they hold.
func (s *Store) read(ctx context.Context, user mxid.UserID) (map[string]string, pusher.List, error) {
	fields, err := s.client.HGetAll(ctx, s.pushersKey(user)).Result()
	if err != nil {
		return nil, pusher.List{}, failed("read the pushers", err)
	}
	pushers := make([]pusher.Pusher, 0, len(fields))
	for field, text := range fields {
		p, err := pusher.ReadStored(text)
		if err == nil && p.Field() != field {
			err = errors.New("the field is not the pusher's key")
		}
		if err != nil {
			return nil, pusher.List{}, pusher.Unreadable(err)
		}
		pushers = append(pushers, p)
	}
	return fields, pusher.NewList(pushers...), nil
}

// write deletes fields, and sets fields to values; done is false where the
// stored fields are no longer old.
func (s *Store) write(
	ctx context.Context, user mxid.UserID, id string, old map[string]string, deletes, sets []any,
) (done bool, err error) {
	args := make([]any, 0, 4+2*len(old)+len(deletes)+len(sets))
	args = append(args, id, int(receiptLifetime.Seconds()), len(old))
	for field, text := range old {
		args = append(args, field, text)
	}
	args = append(append(append(args, len(deletes)), deletes...), sets...)
	done, err = s.swap.Run(ctx, s.client, []string{s.pushersKey(user), s.receiptsKey(user)}, args...).Bool()
	return done, failed("write the pushers", err)
}

// difference returns the fields to delete, and the fields and values to set,
// that make old the list.
func difference(old map[string]string, list pusher.List) (deletes, sets []any) {
	kept := make(map[string]bool, list.Len())
	for _, p := range list.All() {
		field, text := p.Field(), string(p.AppendStored(nil))
		kept[field] = true
		if was, found := old[field]; !found || was != text {
			sets = append(sets, field, text)
		}
	}
	for field := range old {
		if !kept[field] {
			deletes = append(deletes, field)
		}
	}
	return deletes, sets
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
		return pusher.Unreadable(errors.New("the key holds another type of value"))
	}
	return module.Unavailable(fmt.Errorf("pusherstore: %s: %w", doing, err))
}
