package pusherstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.PushkeyIndex = (*Index)(nil)

type entrySnapshot = commit.Snapshot[pusher.Entry, string]

// Index is a [module.PushkeyIndex] on Redis, for use with a [Store]. It is safe for
// concurrent use, does no I/O in the background, and needs no closing.
type Index struct {
	entries *rediscommit.Store[pusher.Entry, string]
	encoder
}

// NewIndex returns an index on client, which must read from masters. The caller closes
// the client.
func NewIndex(client redis.UniversalClient, cfg rediscommit.Config, o rediscommit.Options) (*Index, error) {
	e := encoder{stored.Keys{Prefix: cfg.KeyPrefix}.PusherChannel()}
	entries, err := rediscommit.New(client, cfg, o, e.entryCodec())
	if err != nil {
		return nil, err
	}
	return &Index{entries, e}, nil
}

// Load returns the entry of a pushkey; see [module.PushkeyIndex].
func (x *Index) Load(ctx context.Context, key pusher.Digest) (pusher.Entry, error) {
	now, err := x.entries.Load(ctx, stored.Keys{}.Pushkey(key))
	return now.Value, err
}

// LoadMany returns the entries of many pushkeys, with one round trip to each node for
// every 500 pushkeys; see [module.PushkeyIndex].
func (x *Index) LoadMany(ctx context.Context, keys []pusher.Digest) map[pusher.Digest]module.Result[pusher.Entry] {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = stored.Keys{}.Pushkey(key)
	}
	all := make(map[pusher.Digest]module.Result[pusher.Entry], len(keys))
	for i, loaded := range x.entries.LoadMany(ctx, names) {
		all[keys[i]] = module.Result[pusher.Entry]{Value: loaded.Value.Value, Err: loaded.Err}
	}
	return all
}

// Update replaces the entry of a pushkey; see [module.PushkeyIndex].
func (x *Index) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error) (pusher.Entry, error) {
	now, err := x.entries.Update(ctx, stored.Keys{}.Pushkey(key), edit)
	return now.Value, err
}

// A host without the right to publish can make changes, too. When its memory is full,
// Redis refuses a SET, unless the script has deleted something before.
//
// ARGV: the new entry; its expiry in seconds, 0 for none; whether it is shorter, 0 or 1;
// the number of arguments that describe the old entry, see [rediscommit.CompareArgs], then
// these; the channel; a message about each user who loses the pushkey to another.
var swapEntryScript = `
local n = tonumber(ARGV[4])
if n == 3 then
	if not (` + rediscommit.HasSuffix(5) + `) then return 0 end
elseif redis.call('GET', KEYS[1]) ~= (n == 1 and ARGV[5]) then
	return 0
end
if ARGV[3] == '1' then redis.call('DEL', KEYS[1]) end
if ARGV[2] == '0' then
	redis.call('SET', KEYS[1], ARGV[1])
else
	redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
for i = 6 + n, #ARGV do redis.pcall('PUBLISH', ARGV[5 + n], ARGV[i]) end
return 1`

func (e encoder) entryCodec() rediscommit.Codec[pusher.Entry, string] {
	return rediscommit.Codec[pusher.Entry, string]{
		Name:     "pushkey index",
		Observed: observe.Pushkeys,
		Read: rediscommit.Query[entrySnapshot]{
			Ask:  func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder { return client.Get(ctx, key) },
			Read: readEntry,
		},
		Current:       rediscommit.TextCurrent[pusher.Entry],
		Same:          func(old entrySnapshot, next pusher.Entry) bool { return old.Value.Equal(next) },
		Swap:          swapEntryScript,
		Prepare:       e.prepareEntry,
		Bytes:         rediscommit.TextBytes[pusher.Entry],
		Unreadable:    pusher.Unreadable,
		AssumeMissing: true,
	}
}

func readEntry(_ string, answer redis.Cmder) (s entrySnapshot, err error) {
	text, found, err := rediscommit.Text(answer)
	if err != nil || !found {
		return s, err
	}
	entry, err := stored.ReadEntry(text)
	return entrySnapshot{Found: true, Value: entry.Entry, Revision: entry.Revision, Raw: text}, err
}

func (e encoder) prepareEntry(u commit.Update[pusher.Entry, string]) rediscommit.Swap[pusher.Entry, string] {
	text := string(stored.Entry{Entry: u.Next, Revision: u.Revision}.AppendJSON(nil))
	expiry, shrinks := pusher.EntryDays*24*3600, 0
	if u.Next.Lasts() {
		expiry = 0
	}
	if len(text) < len(u.Old.Raw) {
		shrinks = 1
	}
	old := rediscommit.CompareArgs(u.Old)
	args := append([]any{text, expiry, shrinks, len(old)}, old...)
	args = append(args, e.channel)
	for _, user := range u.Old.Value.Lost(u.Next) {
		args = append(args, stored.Message(user, u.Revision.Version))
	}
	return rediscommit.Swap[pusher.Entry, string]{
		Args: args, Now: entrySnapshot{Found: true, Value: u.Next, Revision: u.Revision, Raw: text},
	}
}
