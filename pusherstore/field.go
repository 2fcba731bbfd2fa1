package pusherstore

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// LoadPusher returns the pusher of one key for many users; see [module.PusherStore]. It
// reads only that pusher and the revision, with one round trip to each node for every
// 500 users.
func (s *Store) LoadPusher(ctx context.Context, key pusher.Key, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	return results(byField(s.fields, key.Field()).LoadMany(ctx, users))
}

// UpdatePusher changes a user's pusher of one key; see [module.PusherStore]. It reads
// the size of the user's other pushers only for an edit that makes the pusher larger:
// it undoes the edit, and repeats it with that size.
func (s *Store) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	var grows bool
	_, err := byField(s.fields, key.Field()).Update(ctx, user, func(list *pusher.List) error {
		before := *list
		if err := edit(list); err != nil {
			return err
		}
		if grows = list.Size().Bytes > before.Size().Bytes; grows {
			*list = before
		}
		return nil
	})
	if err == nil && grows {
		_, err = byField(s.sized, sizedMark+key.Field()).Update(ctx, user, edit)
	}
	return err
}

func byField(store *rediscommit.Store[pusher.List, fields], field string) *rediscommit.Users[pusher.List, fields] {
	return rediscommit.NewUsers(store, func(user mxid.UserID) string { return fieldKey(stored.Keys{}.Pushers(user), field) })
}

// sizedMark begins the field in keys of the store sized. Its snapshots include the size of
// the other pushers, so they need cache entries of their own.
const sizedMark = "+"

// fieldKey joins a hash and a field, which is JSON and so has no line breaks.
func fieldKey(hash, field string) string { return hash + "\n" + field }

func splitFieldKey(key string) (hash, field string) {
	at := strings.LastIndexByte(key, '\n')
	return key[:at], key[at+1:]
}

func hashOf(key string) string {
	hash, _ := splitFieldKey(key)
	return hash
}

func (e encoder) fieldCodec() rediscommit.Codec[pusher.List, fields] {
	codec := e.hashCodec()
	codec.RedisKey = hashOf
	codec.AssumeMissing = false
	codec.Read = rediscommit.Query[snapshot]{Ask: askField, Read: readField}
	codec.Current = func(s snapshot) rediscommit.Query[bool] {
		query := hasRevision(s)
		ask := query.Ask
		query.Ask = func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
			return ask(ctx, client, hashOf(key))
		}
		return query
	}
	codec.Prepare = e.prepareField
	return codec
}

// sizedCodec is fieldCodec whose snapshots include the size of the other pushers.
func (e encoder) sizedCodec() rediscommit.Codec[pusher.List, fields] {
	codec := e.fieldCodec()
	codec.Read = rediscommit.Query[snapshot]{Script: askSized, Read: readSized}
	return codec
}

func askField(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
	hash, field := splitFieldKey(key)
	return client.HMGet(ctx, hash, field, stored.RevisionField, stored.CommitField)
}

func readField(key string, answer redis.Cmder) (snapshot, error) {
	values, err := answer.(*redis.SliceCmd).Result()
	if err != nil {
		return snapshot{}, err
	}
	_, field := splitFieldKey(key)
	return newFieldSnapshot(field, values, pusher.Size{})
}

// newFieldSnapshot returns a snapshot of a field. Values are those of the field, of
// [stored.RevisionField] and of [stored.CommitField], nil if missing.
func newFieldSnapshot(field string, values []any, others pusher.Size) (snapshot, error) {
	found := fields{}
	for i, name := range []string{field, stored.RevisionField, stored.CommitField} {
		if text, isText := values[i].(string); isText {
			found[name] = text
		}
	}
	s, err := readHash(found)
	s.Value = s.Value.WithOthers(others)
	return s, err
}

// sizedScript returns the fields of a hash that [askField] reads, and the number and
// bytes of its other fields.
//
// ARGV: the field, the revision's field, the commit's field.
var sizedScript = redisclient.NewScript(`
local found = redis.pcall('HMGET', KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if found.err then return found end
local others, bytes = 0, 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
	if field ~= ARGV[1] and field ~= ARGV[2] then
		others = others + 1
		bytes = bytes + #field + redis.call('HSTRLEN', KEYS[1], field)
	end
end
return {found[1], found[2], found[3], others, bytes}`)

var errSizedScript = errors.New("the script did not return three values and two numbers")

func askSized(key string) *redisclient.Call {
	hash, marked := splitFieldKey(key)
	return sizedScript.Call([]string{hash}, strings.TrimPrefix(marked, sizedMark), stored.RevisionField, stored.CommitField)
}

func readSized(key string, answer redis.Cmder) (snapshot, error) {
	values, err := answer.(*redis.Cmd).Slice()
	if err != nil {
		return snapshot{}, err
	}
	if len(values) != 5 {
		return snapshot{}, errSizedScript
	}
	others, isNumber := values[3].(int64)
	bytes, areBytes := values[4].(int64)
	if !isNumber || !areBytes {
		return snapshot{}, errSizedScript
	}
	_, marked := splitFieldKey(key)
	return newFieldSnapshot(strings.TrimPrefix(marked, sizedMark), values, pusher.Size{Pushers: int(others), Bytes: int(bytes)})
}

func (e encoder) prepareField(u commit.Update[pusher.List, fields]) rediscommit.Swap[pusher.List, fields] {
	c := newChange(u.Old, u.Next)
	compared := c.comparison()
	compared.count = anyCount
	return e.prepare(u, c, compared)
}
