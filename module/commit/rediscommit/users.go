package rediscommit

import (
	"context"
	"fmt"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Users is a [Store] with one key for each user. It refuses invalid user IDs.
type Users[V, R any] struct {
	store *Store[V, R]
	key   func(mxid.UserID) string
}

// NewUsers returns a store by user. Key returns a user's key without the prefix, with
// the user ID as its hash tag.
func NewUsers[V, R any](store *Store[V, R], key func(mxid.UserID) string) *Users[V, R] {
	return &Users[V, R]{store, key}
}

// Load loads the value of a user; see [Store.Load].
func (u *Users[V, R]) Load(ctx context.Context, user mxid.UserID) (commit.Snapshot[V, R], error) {
	if err := u.validate(user); err != nil {
		return commit.Snapshot[V, R]{}, err
	}
	return u.store.load(ctx, u.store.cfg.KeyPrefix+u.key(user))
}

// LoadMany loads the values of many users; each result has its own error. It does not
// ask other masters for missing values. It asks all nodes concurrently, each in one
// round trip for every 500 keys.
func (u *Users[V, R]) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[commit.Snapshot[V, R]] {
	return ReadMany(ctx, u, users, u.store.codec.Read)
}

// ReadMany sends a query for many users; see [Users.LoadMany]. If the query has IsMissing,
// it asks other masters for missing values as [Store.Load] does.
func ReadMany[T, V, R any](ctx context.Context, u *Users[V, R], users []mxid.UserID, q Query[T]) map[mxid.UserID]module.Result[T] {
	valid, keys, refused := u.keys(users)
	all := make(map[mxid.UserID]module.Result[T], len(users))
	for user, err := range refused {
		all[user] = module.Result[T]{Err: err}
	}
	ctx, cancel := u.store.cfg.Bound(ctx)
	defer cancel()
	results, commands := readAll(ctx, u.store, keys, q)
	if q.IsMissing != nil {
		verifyMissing(ctx, u.store, q, results, commands)
	}
	for i, result := range results {
		all[valid[i]] = result
	}
	return all
}

// LoadMany is [Users.LoadMany] for keys, given without their prefix, in their order.
func (s *Store[V, R]) LoadMany(ctx context.Context, keys []string) []module.Result[commit.Snapshot[V, R]] {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	results, _ := readAll(ctx, s, keys, s.codec.Read)
	return results
}

// readAll sends a query for keys, given without their prefix.
func readAll[T, V, R any](ctx context.Context, s *Store[V, R], keys []string, q Query[T]) ([]module.Result[T], []*redisclient.Command) {
	reads, commands := make([]read[T], len(keys)), make([]*redisclient.Command, len(keys))
	for i, key := range keys {
		reads[i] = read[T]{query: q, key: s.cfg.KeyPrefix + key}
		commands[i] = reads[i].command()
	}
	results := make([]module.Result[T], len(keys))
	for i, err := range s.pipelines.Do(ctx, redisclient.Kind{IsRead: true}, commands...) {
		value, err := reads[i].result(err)
		results[i] = module.Result[T]{Value: value, Err: s.checkError(err)}
	}
	return results, commands
}

// verifyMissing asks the other masters of a cluster for missing values.
func verifyMissing[T, V, R any](ctx context.Context, s *Store[V, R], q Query[T], results []module.Result[T], commands []*redisclient.Command) {
	var places []int
	var missing []*redisclient.Command
	for i, result := range results {
		if result.Err == nil && q.IsMissing(result.Value) {
			places, missing = append(places, i), append(missing, commands[i])
		}
	}
	for n, otherMaster := range s.pipelines.Elsewhere(ctx, missing...) {
		value, err := askAgain(ctx, s, q, results[places[n]].Value, missing[n], otherMaster)
		results[places[n]] = module.Result[T]{Value: value, Err: err}
	}
}

// keys returns each valid user once, with its key, and the errors of invalid users.
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

// Update changes the value of a user; see [Store.Update].
func (u *Users[V, R]) Update(ctx context.Context, user mxid.UserID, edit func(*V) error) (commit.Snapshot[V, R], error) {
	if err := u.validate(user); err != nil {
		return commit.Snapshot[V, R]{}, err
	}
	return u.store.Update(ctx, u.key(user), edit)
}

// Swap replaces the value of a user; see [Store.Swap].
func (u *Users[V, R]) Swap(ctx context.Context, user mxid.UserID, base stored.Revision, args func(stored.Revision) []any) (done bool, err error) {
	if err := u.validate(user); err != nil {
		return false, err
	}
	return u.store.Swap(ctx, u.key(user), base, args)
}

// ForgetBefore drops a user's cached snapshot if it is older than version, which
// another host has written. The next load then need not ask Redis about this snapshot.
func (u *Users[V, R]) ForgetBefore(user mxid.UserID, version int64) {
	u.store.cache.forgetBefore(u.store.cfg.KeyPrefix+u.key(user), version)
}

// Remove removes the value of a user, even if it is unreadable. Errors:
// [module.Unavailable].
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
