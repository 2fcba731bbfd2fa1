package pusherstore

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.PushkeyIndex = (*Index)(nil)

const name = "pushkey index" // in errors

// Index is a [module.PushkeyIndex] on Redis, for use with a [Store]. It is safe for
// concurrent use, does no I/O in the background, and needs no closing.
type Index struct {
	claims     *rediscommit.Store[pusher.Claims, string]
	pending    *rediscommit.Writer // without durability: marks only serve when a host dies before it reconciles
	pendingKey string              // of the sorted set of pending pushkeys
}

// NewIndex returns an index on client, which must read from masters. The caller closes
// the client.
func NewIndex(client redis.UniversalClient, cfg rediscommit.Config, o rediscommit.Options) (*Index, error) {
	o.Pipelines = o.PipelinesOn(client)
	claims, err := rediscommit.New(client, cfg, o, claimsCodec())
	if err != nil {
		return nil, err
	}
	pending, err := rediscommit.NewWriter(client, name, observe.Pushkeys, cfg, o)
	if err != nil {
		return nil, err
	}
	return &Index{claims, pending, stored.Keys{Prefix: cfg.KeyPrefix}.Pending()}, nil
}

// Load returns the claims to a pushkey; see [module.PushkeyIndex].
func (x *Index) Load(ctx context.Context, key pusher.Digest) (pusher.Claims, error) {
	now, err := x.claims.Load(ctx, stored.Keys{}.Claims(key))
	return now.Value, err
}

// Update replaces the claims to a pushkey; see [module.PushkeyIndex].
func (x *Index) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Claims) error) (pusher.Claims, error) {
	now, err := x.claims.Update(ctx, stored.Keys{}.Claims(key), edit)
	return now.Value, err
}

// MarkPending marks a pushkey as pending; see [module.PushkeyIndex].
func (x *Index) MarkPending(ctx context.Context, u module.PendingPushkey) error {
	member := redis.ZAddArgs{GT: true, Members: []redis.Z{{Score: float64(u.Claim), Member: string(u.Key)}}}
	return x.pending.Do(ctx, &redisclient.Command{
		Key: x.pendingKey, IsSingle: true, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
			return to.ZAddArgs(ctx, x.pendingKey, member).Err
		},
	})[0]
}

// ClearPending clears a pending pushkey, unless a later claim has marked it again; see
// [module.PushkeyIndex].
func (x *Index) ClearPending(ctx context.Context, u module.PendingPushkey) error {
	return x.pending.Do(ctx, clearPendingScript.Call([]string{x.pendingKey}, string(u.Key), u.Claim).Command())[0]
}

// ARGV: the digest, the number of the last reconciled claim.
var clearPendingScript = redisclient.NewScript(`
local claim = redis.call('ZSCORE', KEYS[1], ARGV[1])
if claim and tonumber(claim) <= tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
return 1`)

// Pending returns the pending pushkeys, oldest first; see [module.PushkeyIndex].
func (x *Index) Pending(ctx context.Context, before time.Time, limit int) (all []module.PendingPushkey, err error) {
	var members *redis.ZSliceCmd
	last := "+inf"
	if !before.IsZero() {
		last = "(" + strconv.FormatInt(before.UnixMicro(), 10)
	}
	err = x.pending.Read(ctx, &redisclient.Command{
		Key: x.pendingKey, IsSingle: true, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
			members = to.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
				Key: x.pendingKey, ByScore: true, Start: "-inf", Stop: last, Count: int64(limit),
			})
			return members.Err
		},
	})[0]
	if err != nil {
		return nil, err
	}
	for _, member := range members.Val() {
		digest, _ := member.Member.(string)
		all = append(all, module.PendingPushkey{Key: pusher.Digest(digest), Claim: int64(member.Score)})
	}
	return all, nil
}

// ARGV: the new claims; their expiry in seconds, 0 for none; whether claims are only
// removed, 0 or 1; the old claims, see [rediscommit.CompareArgs]. When its memory is full,
// Redis refuses a SET, unless the script has deleted something before.
var swapClaimsScript = `
if ARGV[5] then
	if not (` + rediscommit.HasSuffix(4) + `) then return 0 end
elseif redis.call('GET', KEYS[1]) ~= (ARGV[4] or false) then
	return 0
end
if ARGV[3] == '1' then redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[2] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 1`

func claimsCodec() rediscommit.Codec[pusher.Claims, string] {
	return rediscommit.Codec[pusher.Claims, string]{
		Name:     name,
		Observed: observe.Pushkeys,
		Read: rediscommit.Query[commit.Snapshot[pusher.Claims, string]]{
			Ask:  func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder { return client.Get(ctx, key) },
			Read: readClaims,
		},
		Current: rediscommit.TextCurrent[pusher.Claims],
		Same: func(old commit.Snapshot[pusher.Claims, string], next pusher.Claims) bool {
			return slices.Equal(next.Owners(), old.Value.Owners())
		},
		Swap:          swapClaimsScript,
		Prepare:       prepareClaims,
		Bytes:         rediscommit.TextBytes[pusher.Claims],
		Unreadable:    pusher.Unreadable,
		AssumeMissing: true,
	}
}

func readClaims(_ string, answer redis.Cmder) (s commit.Snapshot[pusher.Claims, string], err error) {
	text, found, err := rediscommit.Text(answer)
	if err != nil || !found {
		return s, err
	}
	entry, err := stored.ReadEntry(text)
	return commit.Snapshot[pusher.Claims, string]{Found: true, Value: entry.Claims, Revision: entry.Revision, Raw: text}, err
}

func prepareClaims(u commit.Update[pusher.Claims, string]) rediscommit.Swap[pusher.Claims, string] {
	text := string(stored.Entry{Claims: u.Next, Revision: u.Revision}.AppendJSON(nil))
	expiry, removes := 0, 0
	if len(u.Next.Owners()) == 0 {
		expiry = int(emptyExpiry.Seconds())
	}
	if len(u.Next.Owners()) < len(u.Old.Value.Owners()) {
		removes = 1
	}
	return rediscommit.Swap[pusher.Claims, string]{
		Args: append([]any{text, expiry, removes}, rediscommit.CompareArgs(u.Old)...),
		Now:  commit.Snapshot[pusher.Claims, string]{Found: true, Value: u.Next, Revision: u.Revision, Raw: text},
	}
}
