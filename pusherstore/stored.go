package pusherstore

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// emptyAge is how long the revision of a hash without pushers is kept.
const emptyAge = 10 * time.Minute

// swapScript changes the hash.
//
// ARGV: how many seconds a hash with but one field lives; the number of fields
// that there must be, -1 for any; the number of fields whose values are
// compared, each with its value; the number of fields to delete, each of them; and
// each field to set with its value.
const swapScript = `
local count = tonumber(ARGV[2])
if count >= 0 and redis.call('HLEN', KEYS[1]) ~= count then return 0 end
local at = 4
for i = 1, tonumber(ARGV[3]) do
	if redis.call('HGET', KEYS[1], ARGV[at]) ~= ARGV[at + 1] then return 0 end
	at = at + 2
end
local deletes = tonumber(ARGV[at])
at = at + 1
if deletes > 0 then
	redis.call('HDEL', KEYS[1], unpack(ARGV, at, at + deletes - 1))
	at = at + deletes
end
redis.call('HSET', KEYS[1], unpack(ARGV, at))
if redis.call('HLEN', KEYS[1]) == 1 then
	redis.call('EXPIRE', KEYS[1], ARGV[1])
else
	redis.call('PERSIST', KEYS[1])
end
return 1`

// storedHash is a hash and the pushers that it holds.
type storedHash struct {
	fields   map[string]string
	list     pusher.List
	revision stored.Revision
}

func read(ctx context.Context, client redis.Cmdable, key string) func() (rediscommit.Stored[pusher.List], error) {
	answer := client.HGetAll(ctx, key)
	return func() (rediscommit.Stored[pusher.List], error) {
		fields, err := answer.Result()
		if err != nil {
			return nil, err
		}
		return readHash(fields)
	}
}

func readHash(fields map[string]string) (storedHash, error) {
	h := stored.ReadHash(fields)
	return storedHash{fields, h.Pushers, h.Revision}, h.Err
}

func (s storedHash) Value() pusher.List        { return s.list }
func (s storedHash) Revision() stored.Revision { return s.revision }

func (s storedHash) Exists() bool { return len(s.fields) > 0 }

// IsCurrent compares the revision, which every write of a store changes.
func (s storedHash) IsCurrent(ctx context.Context, client redis.Cmdable, key string) func() (bool, error) {
	return hasRevision(ctx, client, key, s.fields[stored.RevisionField])
}

func hasRevision(ctx context.Context, client redis.Cmdable, key, want string) func() (bool, error) {
	answer := client.HGet(ctx, key, stored.RevisionField)
	return func() (bool, error) {
		text, err := answer.Result()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		return text == want, err
	}
}

func (s storedHash) Bytes() (bytes int) {
	if s.revision.Version == 0 {
		return 0
	}
	for field, text := range s.fields {
		bytes += len(field) + 2*len(text)
	}
	return bytes
}

func (s storedHash) Change(next pusher.List) rediscommit.Change[pusher.List] { return s.change(next) }

func (s storedHash) change(next pusher.List) change {
	c := change{old: s.fields, next: next}
	left := stored.HashFields(s.fields)
	for _, p := range next.All() {
		field, text := stored.PusherField(p)
		if was, found := left[field]; !found || was != text {
			c.sets = append(c.sets, field, text)
		}
		delete(left, field)
	}
	for field := range left {
		c.deletes = append(c.deletes, field)
	}
	return c
}

// change turns a hash into another: the fields to delete, and the fields and
// values to set.
type change struct {
	old           map[string]string
	next          pusher.List
	deletes, sets []any // strings
}

func (c change) IsEmpty() bool { return len(c.deletes) == 0 && len(c.sets) == 0 }

func (c change) Args(revision stored.Revision) []any { return c.args(c.comparison(), revision) }

// comparison says what must be stored still for a change to be made.
type comparison struct {
	count  int               // how many fields, anyCount for any number
	values map[string]string // fields whose values are as they were
}

const anyCount = -1

// comparison compares the revision and the number of fields. A hash without a
// revision is compared as a whole.
func (c change) comparison() comparison {
	if revision, found := c.old[stored.RevisionField]; found {
		return comparison{len(c.old), map[string]string{stored.RevisionField: revision}}
	}
	return comparison{len(c.old), c.old}
}

// args are the arguments of the script.
func (c change) args(compared comparison, revision stored.Revision) []any {
	args := make([]any, 0, 6+2*len(compared.values)+len(c.deletes)+len(c.sets))
	args = append(args, int(emptyAge.Seconds()), compared.count, len(compared.values))
	for field, text := range compared.values {
		args = append(args, field, text)
	}
	args = append(append(append(args, len(c.deletes)), c.deletes...), c.sets...)
	return append(args, stored.RevisionField, revision.AppendJSON(nil))
}

func (c change) Stored(revision stored.Revision) rediscommit.Stored[pusher.List] {
	return c.stored(revision)
}

func (c change) stored(revision stored.Revision) storedHash {
	fields := maps.Clone(c.old)
	if fields == nil {
		fields = map[string]string{}
	}
	for _, field := range c.deletes {
		delete(fields, field.(string))
	}
	for i := 0; i < len(c.sets); i += 2 {
		fields[c.sets[i].(string)] = c.sets[i+1].(string)
	}
	fields[stored.RevisionField] = string(revision.AppendJSON(nil))
	return storedHash{fields, c.next, revision}
}
