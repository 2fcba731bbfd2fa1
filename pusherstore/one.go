package pusherstore

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// LoadPusher returns the pusher of one key of many users; see
// [module.PusherStore]. It takes one round trip to each node for every 500
// users, and reads nothing but the field of that pusher and the revision.
func (s *Store) LoadPusher(ctx context.Context, key pusher.Key, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	return results(s.one(key).LoadMany(ctx, users))
}

// UpdatePusher changes the user's pusher of one key; see [module.PusherStore].
func (s *Store) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	_, err := s.one(key).Update(ctx, user, edit)
	return err
}

// one returns a view of the store in which each user's hash has the field of one
// pusher only.
func (s *Store) one(pushkey pusher.Key) *rediscommit.Users[pusher.List] {
	field := pushkey.Field()
	return rediscommit.NewUsers(s.fields, func(user mxid.UserID) string { return fieldKey(stored.Keys{}.Pushers(user), field) })
}

// fieldKey names a field of a hash. A field is JSON, which has no line breaks.
func fieldKey(hash, field string) string { return hash + "\n" + field }

// splitFieldKey returns what [fieldKey] joined.
func splitFieldKey(key string) (hash, field string) {
	at := strings.LastIndexByte(key, '\n')
	return key[:at], key[at+1:]
}

func hashOf(key string) string {
	hash, _ := splitFieldKey(key)
	return hash
}

// readOne reads one field of a hash and the revision.
func readOne(ctx context.Context, client redis.Cmdable, key string) func() (rediscommit.Stored[pusher.List], error) {
	hash, field := splitFieldKey(key)
	answer := client.HMGet(ctx, hash, field, stored.RevisionField)
	return func() (rediscommit.Stored[pusher.List], error) {
		values, err := answer.Result()
		if err != nil {
			return nil, err
		}
		fields := map[string]string{}
		for i, name := range []string{field, stored.RevisionField} {
			if text, isText := values[i].(string); isText {
				fields[name] = text
			}
		}
		s, err := readHash(fields)
		return storedOne{s}, err
	}
}

// storedOne is a hash of which one pusher was read.
type storedOne struct{ storedHash }

func (s storedOne) IsCurrent(ctx context.Context, client redis.Cmdable, key string) func() (bool, error) {
	return hasRevision(ctx, client, hashOf(key), s.fields[stored.RevisionField])
}

func (s storedOne) Change(next pusher.List) rediscommit.Change[pusher.List] {
	return changeOne{s.change(next)}
}

// changeOne changes one field of a hash and leaves the others as they are.
type changeOne struct{ change }

func (c changeOne) Args(revision stored.Revision) []any {
	compared := c.comparison()
	compared.count = anyCount
	return c.args(compared, revision)
}

func (c changeOne) Stored(revision stored.Revision) rediscommit.Stored[pusher.List] {
	return storedOne{c.stored(revision)}
}
