package pusherstore

import (
	"context"
	"errors"
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
	return results(one(s.fields, key.Field()).LoadMany(ctx, users))
}

// errGrows ends a change that makes a pusher larger, for which the size of the others
// must be known.
var errGrows = errors.New("the pusher grows")

// UpdatePusher changes the user's pusher of one key; see [module.PusherStore]. It asks
// for the size of the others only if the pusher grows.
func (s *Store) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	_, err := one(s.fields, key.Field()).Update(ctx, user, func(list *pusher.List) error {
		before := list.Size()
		if err := edit(list); err != nil {
			return err
		}
		if list.Size().Bytes > before.Bytes {
			return errGrows
		}
		return nil
	})
	if errors.Is(err, errGrows) {
		_, err = one(s.sized, sizedMark+key.Field()).Update(ctx, user, edit)
	}
	return err
}

// one returns a view of a store in which each user's hash has one field only.
func one(store *rediscommit.Store[pusher.List], field string) *rediscommit.Users[pusher.List] {
	return rediscommit.NewUsers(store, func(user mxid.UserID) string { return fieldKey(stored.Keys{}.Pushers(user), field) })
}

// sizedMark stands before the fields of which the size of the others is known, so that
// they are cached apart.
const sizedMark = "+"

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
		return newStoredOne(field, values, pusher.Size{})
	}
}

// newStoredOne returns the field and the revision, which are nil if they are not there.
func newStoredOne(field string, values []any, others pusher.Size) (storedOne, error) {
	fields := map[string]string{}
	for i, name := range []string{field, stored.RevisionField} {
		if text, isText := values[i].(string); isText {
			fields[name] = text
		}
	}
	s, err := readHash(fields)
	s.list = s.list.WithOthers(others)
	return storedOne{s}, err
}

// sizedScript returns a field of a hash, the revision, how many other fields there
// are, and the bytes that these and their values take.
//
// ARGV: the field; that of the revision.
const sizedScript = `
local found = redis.pcall('HMGET', KEYS[1], ARGV[1], ARGV[2])
if found.err then return found end
local others, bytes = 0, 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
	if field ~= ARGV[1] and field ~= ARGV[2] then
		others = others + 1
		bytes = bytes + #field + redis.call('HSTRLEN', KEYS[1], field)
	end
end
return {found[1], found[2], others, bytes}`

var errSizedScript = errors.New("the script has not returned two values and two numbers")

// readSized reads one field of a hash, the revision, and the size of the others.
func readSized(ctx context.Context, client redis.Cmdable, key string) func() (rediscommit.Stored[pusher.List], error) {
	hash, marked := splitFieldKey(key)
	field := strings.TrimPrefix(marked, sizedMark)
	answer := client.Eval(ctx, sizedScript, []string{hash}, field, stored.RevisionField) // within a pipeline, EVALSHA could not be repeated
	return func() (rediscommit.Stored[pusher.List], error) {
		values, err := answer.Slice()
		if err != nil {
			return nil, err
		}
		if len(values) != 4 {
			return nil, errSizedScript
		}
		others, isNumber := values[2].(int64)
		bytes, areBytes := values[3].(int64)
		if !isNumber || !areBytes {
			return nil, errSizedScript
		}
		return newStoredOne(field, values, pusher.Size{Pushers: int(others), Bytes: int(bytes)})
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
