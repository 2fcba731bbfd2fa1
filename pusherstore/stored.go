package pusherstore

import (
	"context"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// emptyAge is how long a hash without pushers stays, for its revision.
const emptyAge = 10 * time.Minute

// swapScript changes the hash.
//
// ARGV: how many seconds a hash with but one field lives; the number of fields
// that there must be, -1 for any; the number of fields whose values are
// compared, each with its value; the number of fields whose lengths are
// compared, each with the length of its value; the number of fields to delete,
// each of them; and each field to set with its value.
const swapScript = `
local count = tonumber(ARGV[2])
if count >= 0 and redis.call('HLEN', KEYS[1]) ~= count then return 0 end
local values = tonumber(ARGV[3])
local at = 4
for i = 1, values do
	if redis.call('HGET', KEYS[1], ARGV[at]) ~= ARGV[at + 1] then return 0 end
	at = at + 2
end
local lengths = tonumber(ARGV[at])
at = at + 1
for i = 1, lengths do
	if redis.call('HSTRLEN', KEYS[1], ARGV[at]) ~= tonumber(ARGV[at + 1]) then return 0 end
	at = at + 2
end
local deletes = tonumber(ARGV[at])
for i = 1, deletes do redis.call('HDEL', KEYS[1], ARGV[at + i]) end
at = at + deletes + 1
while at < #ARGV do
	redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
	at = at + 2
end
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

func (s storedHash) Change(next pusher.List) (rediscommit.Change, error) { return s.change(next), nil }

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

// change is what makes a hash another: the fields to delete, and the fields
// and values to set.
type change struct {
	old           map[string]string
	next          pusher.List
	deletes, sets []any // strings
}

func (c change) IsEmpty() bool { return len(c.deletes) == 0 && len(c.sets) == 0 }

func (c change) Args(revision stored.Revision) []any { return c.args(c.comparison(), revision) }

// comparison says what must be stored still for a change to be made.
type comparison struct {
	count           int               // how many fields, anyCount for any number
	values, lengths map[string]string // fields whose values, and whose lengths, are as they were
}

const anyCount = -1

// comparison compares the revision, which every write of a store changes, and
// what the change replaces. The rest is not sent to Redis again: where somebody
// has changed a field by hand, that shows in the number of fields or the length,
// and if not, the field stays as it is. A hash without a revision is compared as
// a whole.
func (c change) comparison() comparison {
	whole := comparison{count: len(c.old), values: c.old}
	if _, found := c.old[stored.RevisionField]; !found {
		return whole
	}
	replaced := map[any]bool{stored.RevisionField: true}
	for _, field := range c.deletes {
		replaced[field] = true
	}
	for i := 0; i < len(c.sets); i += 2 {
		replaced[c.sets[i]] = true
	}
	some := comparison{count: len(c.old), values: map[string]string{}, lengths: map[string]string{}}
	for field, text := range c.old {
		if replaced[field] {
			some.values[field] = text
		} else {
			some.lengths[field] = text
		}
	}
	return some
}

// args are the arguments of the script.
func (c change) args(compared comparison, revision stored.Revision) []any {
	args := make([]any, 0, 7+2*len(c.old)+len(c.deletes)+len(c.sets))
	args = append(args, int(emptyAge.Seconds()), compared.count, len(compared.values))
	for field, text := range compared.values {
		args = append(args, field, text)
	}
	args = append(args, len(compared.lengths))
	for field, text := range compared.lengths {
		args = append(args, field, len(text))
	}
	args = append(append(append(args, len(c.deletes)), c.deletes...), c.sets...)
	return append(args, stored.RevisionField, revision.AppendJSON(nil))
}

// Successor is the hash as it is stored then.
func (c change) Successor(revision stored.Revision) (next rediscommit.Stored[pusher.List], bytes int) {
	return c.successor(revision)
}

func (c change) successor(revision stored.Revision) (next storedHash, bytes int) {
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
	for field, text := range fields {
		bytes += len(field) + 2*len(text)
	}
	return storedHash{fields, c.next, revision}, bytes
}
