package pusherstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.PushkeyIndex = (*Index)(nil)

// Index is a [module.PushkeyIndex] on Redis, beside a [Store]. It is safe for
// concurrent use, does no I/O of its own accord, and needs no closing.
type Index struct {
	claims    *rediscommit.Store[pusher.Claims]
	client    redis.UniversalClient
	cfg       rediscommit.Config
	postponed string // the key of what is to be settled
	settled   *redis.Script
}

// NewIndex returns an index on client, which stays the caller's. The client
// must read from masters.
func NewIndex(client redis.UniversalClient, cfg rediscommit.Config, o rediscommit.Options) (*Index, error) {
	claims, err := rediscommit.New(client, cfg, o, rediscommit.Layout[pusher.Claims]{
		Name:       "pushkey index",
		Observed:   observe.Pushkeys,
		Read:       readClaims,
		Swap:       swapClaimsScript,
		Unreadable: pusher.Unreadable,
		Missing:    storedClaims{},
	})
	if err != nil {
		return nil, err
	}
	return &Index{claims, client, cfg, stored.Keys{Prefix: cfg.KeyPrefix}.Unsettled(), redis.NewScript(settledScript)}, nil
}

// Load returns the claims to a pushkey; see [module.PushkeyIndex].
func (x *Index) Load(ctx context.Context, key pusher.Digest) (pusher.Claims, error) {
	state, err := x.claims.Load(ctx, stored.Keys{}.Claims(key))
	return state.Value, err
}

// Update replaces the claims to a pushkey; see [module.PushkeyIndex].
func (x *Index) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Claims) error) (pusher.Claims, error) {
	state, err := x.claims.Update(ctx, stored.Keys{}.Claims(key), edit)
	return state.Value, err
}

// Postpone remembers a claim; see [module.PushkeyIndex].
func (x *Index) Postpone(ctx context.Context, u module.Unsettled) error {
	member := redis.ZAddArgs{GT: true, Members: []redis.Z{{Score: float64(u.Claim), Member: string(u.Key)}}}
	return x.do(ctx, "postpone", func(ctx context.Context) error {
		return x.client.ZAddArgs(ctx, x.postponed, member).Err()
	})
}

// Settled forgets a pushkey unless a later claim was postponed; see
// [module.PushkeyIndex].
func (x *Index) Settled(ctx context.Context, u module.Unsettled) error {
	return x.do(ctx, "settled", func(ctx context.Context) error {
		return x.settled.Run(ctx, x.client, []string{x.postponed}, string(u.Key), u.Claim).Err()
	})
}

// settledScript removes a pushkey from those to be settled.
//
// ARGV: the digest, and the number of the last claim that is settled.
const settledScript = `
local claim = redis.call('ZSCORE', KEYS[1], ARGV[1])
if claim and tonumber(claim) <= tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
return 1`

// Postponed returns what was postponed, the oldest first; see
// [module.PushkeyIndex].
func (x *Index) Postponed(ctx context.Context, before time.Time, limit int) (all []module.Unsettled, err error) {
	var members []redis.Z
	last := "+inf"
	if !before.IsZero() {
		last = "(" + strconv.FormatInt(before.UnixMicro(), 10)
	}
	err = x.do(ctx, "postponed", func(ctx context.Context) (err error) {
		members, err = x.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: x.postponed, ByScore: true, Start: "-inf", Stop: last, Count: int64(limit),
		}).Result()
		return err
	})
	for _, member := range members {
		digest, _ := member.Member.(string)
		all = append(all, module.Unsettled{Key: pusher.Digest(digest), Claim: int64(member.Score)})
	}
	return all, err
}

// do runs a command that may be repeated.
func (x *Index) do(ctx context.Context, doing string, command func(context.Context) error) error {
	ctx, cancel := x.cfg.Bound(ctx)
	defer cancel()
	if err := command(ctx); err != nil {
		return module.Unavailable(fmt.Errorf("pushkey index: %s: %w", doing, err))
	}
	return nil
}

// swapClaimsScript replaces the claims.
//
// ARGV: the new claims, for how many seconds they live, 0 without end, and the
// end of the claims as they were read, or the whole of them, which are left out
// if there were none.
var swapClaimsScript = `
if ARGV[4] then
	if not (` + rediscommit.HasEnd(3) + `) then return 0 end
elseif redis.call('GET', KEYS[1]) ~= (ARGV[3] or false) then
	return 0
end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[2] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 1`

// storedClaims are claims and the text they were read from, nil for none.
type storedClaims struct {
	stored.Entry
	text *string
}

func readClaims(ctx context.Context, client redis.Cmdable, key string) func() (rediscommit.Stored[pusher.Claims], error) {
	answer := client.Get(ctx, key)
	return func() (rediscommit.Stored[pusher.Claims], error) {
		text, err := answer.Result()
		if errors.Is(err, redis.Nil) {
			return storedClaims{}, nil
		}
		if err != nil {
			return nil, err
		}
		entry, err := stored.ReadEntry(text)
		return storedClaims{entry, &text}, err
	}
}

func (s storedClaims) Exists() bool              { return s.text != nil }
func (s storedClaims) Value() pusher.Claims      { return s.Claims }
func (s storedClaims) Revision() stored.Revision { return s.Entry.Revision }

// end is what tells the claims from others; found is false for those without a
// revision.
func (s storedClaims) end() (end rediscommit.End, found bool) {
	if s.text == nil {
		return end, false
	}
	return rediscommit.EndOf(*s.text, s.Entry.Revision)
}

func (s storedClaims) IsCurrent(ctx context.Context, client redis.Cmdable, key string) func() (bool, error) {
	end, _ := s.end()
	return end.IsAt(ctx, client, key)
}

func (s storedClaims) Bytes() int {
	if _, found := s.end(); !found {
		return 0
	}
	return 2 * len(*s.text)
}

func (s storedClaims) Change(next pusher.Claims) rediscommit.Change[pusher.Claims] {
	return claimsChange{s, next}
}

// claimsChange replaces claims by others.
type claimsChange struct {
	old  storedClaims
	next pusher.Claims
}

func (c claimsChange) IsEmpty() bool {
	return slices.Equal(c.next.Owners(), c.old.Claims.Owners())
}

func (c claimsChange) Args(revision stored.Revision) []any {
	life := 0
	if len(c.next.Owners()) == 0 {
		life = int(emptyAge.Seconds())
	}
	args := []any{c.text(revision), life}
	if end, found := c.old.end(); found {
		return append(args, end.Args()...)
	}
	if c.old.text != nil {
		args = append(args, *c.old.text)
	}
	return args
}

func (c claimsChange) Stored(revision stored.Revision) rediscommit.Stored[pusher.Claims] {
	text := c.text(revision)
	return storedClaims{stored.Entry{Claims: c.next, Revision: revision}, &text}
}

func (c claimsChange) text(revision stored.Revision) string {
	return string(stored.Entry{Claims: c.next, Revision: revision}.AppendJSON(nil))
}
