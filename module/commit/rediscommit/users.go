package rediscommit

import (
	"context"
	"fmt"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// Users is a [Store] with one key for each user. What is no user id is refused.
type Users[V, R any] struct {
	store *Store[V, R]
	key   func(mxid.UserID) string
}

// NewUsers returns the view of a store by user. Key is a user's key, without
// the prefix; the user id is its hash tag.
func NewUsers[V, R any](store *Store[V, R], key func(mxid.UserID) string) *Users[V, R] {
	return &Users[V, R]{store, key}
}

// Load is [Store.Load] for a user.
func (u *Users[V, R]) Load(ctx context.Context, user mxid.UserID) (commit.Snapshot[V, R], error) {
	if err := u.validate(user); err != nil {
		return commit.Snapshot[V, R]{}, err
	}
	return u.store.Load(ctx, u.key(user))
}

// LoadMany is [Users.Load] for many users, but asks no other master for what it does not
// find. It takes one round trip to each node for every 500 of its keys. The nodes are
// asked side by side, so that a silent node delays only the call as a whole.
func (u *Users[V, R]) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Answer[commit.Snapshot[V, R]] {
	return ReadMany(ctx, u, users, u.store.codec.Read)
}

// ReadMany sends a query for many users, in the way of [Users.LoadMany].
func ReadMany[T, V, R any](ctx context.Context, u *Users[V, R], users []mxid.UserID, q Query[T]) map[mxid.UserID]Answer[T] {
	valid, keys, refused := u.keys(users)
	all := make(map[mxid.UserID]Answer[T], len(users))
	for user, err := range refused {
		all[user] = Answer[T]{Err: err}
	}
	for i, answer := range readMany(ctx, u.store, keys, q) {
		all[valid[i]] = answer
	}
	return all
}

// keys returns each user once with the key, and why those are refused who are
// none.
func (u *Users[V, R]) keys(users []mxid.UserID) (valid []mxid.UserID, keys []string, refused map[mxid.UserID]error) {
	seen := make(map[mxid.UserID]bool, len(users))
	refused = map[mxid.UserID]error{}
	for _, user := range users {
		if seen[user] {
			continue
		}
		seen[user] = true
		if err := u.validate(user); err != nil {
			refused[user] = err
			continue
		}
		valid, keys = append(valid, user), append(keys, u.key(user))
	}
	return valid, keys, refused
}

// Update is [Store.Update] for a user.
func (u *Users[V, R]) Update(ctx context.Context, user mxid.UserID, edit func(*V) error) (commit.Snapshot[V, R], error) {
	if err := u.validate(user); err != nil {
		return commit.Snapshot[V, R]{}, err
	}
	return u.store.Update(ctx, u.key(user), edit)
}

// Swap is [Store.Swap] for a user.
func (u *Users[V, R]) Swap(ctx context.Context, user mxid.UserID, onto stored.Revision, args func(stored.Revision) []any) (done bool, err error) {
	if err := u.validate(user); err != nil {
		return false, err
	}
	return u.store.Swap(ctx, u.key(user), onto, args)
}

// ForgetBefore drops what is cached of a user with a version before the given one, which
// another host has written: to ask whether it is stored still would be in vain.
func (u *Users[V, R]) ForgetBefore(user mxid.UserID, version int64) {
	u.store.cache.forgetBefore(u.store.codec.redisKey(u.store.cfg.KeyPrefix+u.key(user)), version)
}

// Remove is [Store.Remove] for a user.
func (u *Users[V, R]) Remove(ctx context.Context, user mxid.UserID) error {
	if err := u.validate(user); err != nil {
		return err
	}
	return u.store.remove(ctx, u.key(user))
}

func (u *Users[V, R]) validate(user mxid.UserID) error {
	if err := user.Validate(); err != nil {
		return fmt.Errorf("%s: %w", u.store.codec.Name, err)
	}
	return nil
}
