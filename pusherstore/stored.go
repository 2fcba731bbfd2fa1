package pusherstore

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// emptyExpiry is how long a hash without pushers keeps its revision.
const emptyExpiry = 10 * time.Minute

// swapScript changes a hash. A host without the right to publish can make changes, too.
//
// ARGV: the channel; the message; the expiry in seconds of a hash with a
// single field; the required number of fields; the number of fields to
// compare, then each with its value; the number of fields to delete, then each; then
// each field to set with its value.
const swapScript = `
if redis.call('HLEN', KEYS[1]) ~= tonumber(ARGV[4]) then return 0 end
local at = 6
for i = 1, tonumber(ARGV[5]) do
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
	redis.call('EXPIRE', KEYS[1], ARGV[3])
else
	redis.call('PERSIST', KEYS[1])
end
redis.pcall('PUBLISH', ARGV[1], ARGV[2])
return 1`

type fields = map[string]string

type snapshot = commit.Snapshot[pusher.List, fields]

type encoder struct{ channel string }

func (e encoder) hashCodec() rediscommit.Codec[pusher.List, fields] {
	return rediscommit.Codec[pusher.List, fields]{
		Name:     "pusherstore",
		Observed: observe.Pushers,
		Read: rediscommit.Query[snapshot]{
			Ask: func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
				return client.HGetAll(ctx, key)
			},
			Read: readHash,
		},
		Current:       hasRevision,
		Same:          func(old snapshot, next pusher.List) bool { return old.Value.Equal(next) },
		Swap:          swapScript,
		Prepare:       e.prepare,
		Bytes:         hashBytes,
		Unreadable:    pusher.Unreadable,
		AssumeMissing: true,
		Removed: func(key string) (channel, message string) {
			return e.channel, stored.Message(userOf(key), 1) // a removed hash has no version
		},
	}
}

func readHash(_ string, answer redis.Cmder) (snapshot, error) {
	all, err := answer.(*redis.MapStringStringCmd).Result()
	if err != nil {
		return snapshot{}, err
	}
	h := stored.ReadHash(all)
	return snapshot{Found: len(all) > 0, Value: h.Pushers, Revision: h.Revision, Raw: all}, h.Err
}

func hasRevision(s snapshot) rediscommit.Query[bool] {
	return rediscommit.Query[bool]{
		Ask: func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
			return client.HGet(ctx, key, stored.RevisionField)
		},
		Read: func(_ string, answer redis.Cmder) (bool, error) {
			text, found, err := rediscommit.Text(answer)
			return found && text == s.Raw[stored.RevisionField], err
		},
	}
}

func hashBytes(s snapshot) (bytes int) {
	if s.Revision.Version == 0 {
		return 0
	}
	for field, text := range s.Raw {
		bytes += len(field) + 2*len(text)
	}
	return bytes
}

type change struct {
	old           fields
	deletes, sets []any // fields to delete; fields to set, each with its value
}

// newChange encodes only the pushers that differ from the old ones.
func newChange(old snapshot, next pusher.List) change {
	c := change{old: old.Raw}
	for _, p := range next.All() {
		if before, found := old.Value.Pusher(p.Key); !found || !before.Equal(p) {
			c.sets = append(c.sets, p.Field(), string(p.AppendStored(nil)))
		}
	}
	for _, p := range old.Value.All() {
		if _, found := next.Pusher(p.Key); !found {
			c.deletes = append(c.deletes, p.Field())
		}
	}
	return c
}

type comparison struct {
	count  int    // of fields
	values fields // some fields with their values
}

// comparison requires the same revision and number of fields. For a hash without a
// revision, it requires all fields and values.
func (c change) comparison() comparison {
	if revision, found := c.old[stored.RevisionField]; found {
		return comparison{len(c.old), fields{stored.RevisionField: revision}}
	}
	return comparison{len(c.old), c.old}
}

func (e encoder) args(c change, compared comparison, message, revision string) []any {
	args := make([]any, 0, 8+2*len(compared.values)+len(c.deletes)+len(c.sets))
	args = append(args, e.channel, message, int(emptyExpiry.Seconds()), compared.count, len(compared.values))
	for field, text := range compared.values {
		args = append(args, field, text)
	}
	args = append(append(append(args, len(c.deletes)), c.deletes...), c.sets...)
	return append(args, stored.RevisionField, revision)
}

func encode(revision stored.Revision) string { return string(revision.AppendJSON(nil)) }

func (c change) result(revision string) fields {
	after := maps.Clone(c.old)
	if after == nil {
		after = fields{}
	}
	for _, field := range c.deletes {
		delete(after, field.(string))
	}
	for i := 0; i < len(c.sets); i += 2 {
		after[c.sets[i].(string)] = c.sets[i+1].(string)
	}
	after[stored.RevisionField] = revision
	return after
}

func (e encoder) prepare(u commit.Update[pusher.List, fields]) rediscommit.Swap[pusher.List, fields] {
	c := newChange(u.Old, u.Next)
	revision, message := encode(u.Revision), stored.Message(userOf(u.Key), u.Revision.Version)
	if u.Old.Value.EqualButClaims(u.Next) {
		message = stored.RepeatedMessage(userOf(u.Key), u.Revision.Version)
	}
	return rediscommit.Swap[pusher.List, fields]{
		Args: e.args(c, c.comparison(), message, revision),
		Now:  snapshot{Found: true, Value: u.Next, Revision: u.Revision, Raw: c.result(revision)},
	}
}

// userOf returns the user of a hash.
func userOf(key string) mxid.UserID {
	_, tagged, _ := strings.Cut(key, "{")
	return mxid.UserID(strings.TrimSuffix(tagged, "}"))
}
