package rediscommit

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// Users is a [Store] with one key for each user. What is no user id is refused.
type Users[V any] struct {
	store *Store[V]
	key   func(mxid.UserID) string
}

// NewUsers returns the view of a store by user. Key is a user's key, without
// the prefix; the user id is its hash tag.
func NewUsers[V any](store *Store[V], key func(mxid.UserID) string) *Users[V] {
	return &Users[V]{store, key}
}

// Load is [Store.Load] for a user.
func (u *Users[V]) Load(ctx context.Context, user mxid.UserID) (commit.State[V], error) {
	if err := u.validate(user); err != nil {
		return commit.State[V]{}, err
	}
	return u.store.Load(ctx, u.key(user))
}

// LoadMany is [Store.LoadMany] for users.
func (u *Users[V]) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Loaded[V] {
	valid, keys, refused := u.keys(users)
	all := make(map[mxid.UserID]Loaded[V], len(users))
	for user, err := range refused {
		all[user] = Loaded[V]{Err: err}
	}
	for i, loaded := range u.store.LoadMany(ctx, keys) {
		all[valid[i]] = loaded
	}
	return all
}

// ReadMany reads a part of what is stored for many users, in the way of
// [Store.LoadMany]. Read is as [Layout.Read].
func ReadMany[T, V any](
	ctx context.Context, u *Users[V], users []mxid.UserID, read func(context.Context, redis.Cmdable, string) func() (T, error),
) map[mxid.UserID]Answer[T] {
	valid, keys, refused := u.keys(users)
	all := make(map[mxid.UserID]Answer[T], len(users))
	for user, err := range refused {
		all[user] = Answer[T]{Err: err}
	}
	for i, answer := range readMany(ctx, u.store, keys, read) {
		all[valid[i]] = answer
	}
	return all
}

// keys returns each user once with the key, and why those are refused who are
// none.
func (u *Users[V]) keys(users []mxid.UserID) (valid []mxid.UserID, keys []string, refused map[mxid.UserID]error) {
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
func (u *Users[V]) Update(ctx context.Context, user mxid.UserID, edit func(*V) error) (commit.State[V], error) {
	if err := u.validate(user); err != nil {
		return commit.State[V]{}, err
	}
	return u.store.Update(ctx, u.key(user), edit)
}

// Swap is [Store.Swap] for a user.
func (u *Users[V]) Swap(ctx context.Context, user mxid.UserID, onto stored.Revision, args func(stored.Revision) []any) (done bool, err error) {
	if err := u.validate(user); err != nil {
		return false, err
	}
	return u.store.Swap(ctx, u.key(user), onto, args)
}

// Heard tells the store of a version that somebody has written: what is cached of an
// older one is dropped, since to ask whether it is stored still would be in vain.
func (u *Users[V]) Heard(user mxid.UserID, version int64) { u.store.heard(u.key(user), version) }

// Remove is [Store.Remove] for a user.
func (u *Users[V]) Remove(ctx context.Context, user mxid.UserID) error {
	if err := u.validate(user); err != nil {
		return err
	}
	return u.store.Remove(ctx, u.key(user))
}

func (u *Users[V]) validate(user mxid.UserID) error {
	if err := user.Validate(); err != nil {
		return fmt.Errorf("%s: %w", u.store.layout.Name, err)
	}
	return nil
}
