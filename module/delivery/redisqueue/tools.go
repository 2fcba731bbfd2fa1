package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// number64 is the text of a number.
func number64(n int64) string { return strconv.FormatInt(n, 10) }

// State is a pusher's place in a log, with what the log says of its gate.
type State struct {
	stored.PusherState
	Pusher string
}

// Hold makes hosts send nothing to a gateway, until [Queue.OpenGateway].
func (q *Queue) Hold(ctx context.Context, gateway string) error {
	key := q.keys.DeliveryGateways()
	var set *redis.BoolCmd
	return q.writer.Do(ctx, command(key, &set, func(ctx context.Context, to redisclient.Sender) *redis.BoolCmd {
		return to.HSetNX(ctx, key, gateway, time.Now().UnixMilli())
	}))[0]
}

// OpenGateway ends [Queue.Hold], and reports whether the gateway was held.
func (q *Queue) OpenGateway(ctx context.Context, gateway string) (wasHeld bool, err error) {
	key := q.keys.DeliveryGateways()
	var removed *redis.IntCmd
	if err := q.writer.Do(ctx, command(key, &removed, func(ctx context.Context, to redisclient.Sender) *redis.IntCmd {
		return to.HDel(ctx, key, gateway)
	}))[0]; err != nil {
		return false, err
	}
	return removed.Val() > 0, nil
}

// Held returns the held gateways, and since when.
func (q *Queue) Held(ctx context.Context) (map[string]time.Time, error) {
	key := q.keys.DeliveryGateways()
	var all *redis.MapStringStringCmd
	if err := q.read(ctx, command(key, &all, func(ctx context.Context, to redisclient.Sender) *redis.MapStringStringCmd {
		return to.HGetAll(ctx, key)
	})); err != nil {
		return nil, err
	}
	held := map[string]time.Time{}
	for gateway, text := range all.Val() {
		ms, _ := strconv.ParseInt(text, 10, 64)
		held[gateway] = time.UnixMilli(ms)
	}
	return held, nil
}

// Listing is what a shard of the index says of a gate.
type Listing struct {
	Gate                string
	Users, Failing, Due int
	Sample              []mxid.UserID // the earliest users
}

// sampleUsers is how many users a shard returns in samples, about.
const sampleUsers = 100

// ShardListings returns the gates of a shard, at most 2,000 of them.
func (q *Queue) ShardListings(ctx context.Context, shard int) ([]Listing, error) {
	key := q.keys.ShardGates(shard)
	var names *redis.StringSliceCmd
	var now *redis.TimeCmd
	if err := q.read(ctx, &redisclient.Command{Key: key, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
		names, now = to.ZRange(ctx, key, 0, summaryGates-1), to.Time(ctx)
		return func() error { return cmp.Or(names.Err(), now.Err()) }
	}}); err != nil || len(names.Val()) == 0 {
		return nil, err
	}
	last := int64(sampleUsers / len(names.Val()))
	var commands []*redisclient.Command
	counts, due, users := make([][2]*redis.IntCmd, len(names.Val())), make([][2]*redis.IntCmd, len(names.Val())), make([][2]*redis.StringSliceCmd, len(names.Val()))
	for i, gate := range names.Val() {
		for n, key := range []string{q.keys.ShardDue(shard, gate), q.keys.ShardAfter(shard, gate)} {
			commands = append(commands,
				command(key, &counts[i][n], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd { return to.ZCard(ctx, key) }),
				command(key, &due[i][n], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd {
					return to.ZCount(ctx, key, "-inf", number64(now.Val().UnixMicro()))
				}),
				command(key, &users[i][n], func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
					return to.ZRange(ctx, key, 0, last)
				}))
		}
	}
	if err := q.read(ctx, commands...); err != nil {
		return nil, err
	}
	all := make([]Listing, len(names.Val()))
	for i, gate := range names.Val() {
		all[i] = Listing{Gate: gate, Failing: int(counts[i][1].Val())}
		for n := range counts[i] {
			all[i].Users += int(counts[i][n].Val())
			all[i].Due += int(due[i][n].Val())
			for _, user := range users[i][n].Val() {
				all[i].Sample = append(all[i].Sample, mxid.UserID(user))
			}
		}
	}
	return all, nil
}

// UsersAt returns the users of a gate in a shard.
func (q *Queue) UsersAt(ctx context.Context, shard int, gate string) (all []mxid.UserID, err error) {
	for _, key := range []string{q.keys.ShardDue(shard, gate), q.keys.ShardAfter(shard, gate)} {
		const page = 1000
		for from := int64(0); ; from += page {
			var users *redis.StringSliceCmd
			if err := q.read(ctx, command(key, &users, func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
				return to.ZRange(ctx, key, from, from+page-1)
			})); err != nil {
				return nil, err
			}
			for _, user := range users.Val() {
				all = append(all, mxid.UserID(user))
			}
			if len(users.Val()) < page {
				break
			}
		}
	}
	return all, nil
}

// Place is a pusher with something to send.
type Place struct {
	State
	User          mxid.UserID
	Notifications int
	Oldest        time.Time // when the first of them was added
	End           int64     // the number of the next notification to be appended, or less
	Now           time.Time // by the clock of the user's log
}

// Places returns the places of users' pushers, without reading texts. It skips a user whose
// log has another type. After an error, it returns the places of the other users.
func (q *Queue) Places(ctx context.Context, users []mxid.UserID) (places []Place, err error) {
	for _, part := range q.Parts(ctx, users) {
		for some := range slices.Chunk(part, 100) {
			logs, failed := q.waitsOf(ctx, some)
			if failed != nil {
				err = failed
				break
			}
			for _, w := range logs {
				places = append(places, w.places()...)
			}
		}
	}
	return places, err
}

func (w *waiting) places() (all []Place) {
	if len(w.states) != len(w.pushers) {
		return nil // a state is unreadable
	}
	for i, s := range w.states {
		_, left := w.first(s)
		p := Place{State: State{s, w.pushers[i]}, User: w.user, Notifications: left, Oldest: w.added[i], End: s.Number, Now: w.now}
		if len(w.numbers) > 0 {
			p.End = max(p.End, w.numbers[len(w.numbers)-1]+1)
		}
		all = append(all, p)
	}
	return all
}

// hastenScript makes pushers due that wait. ARGV: the pushers. It returns how many waited.
var hasten = redisclient.NewScript(clock + `
local n, got = 0, redis.call('HMGET', KEYS[1], unpack(ARGV))
for i = 1, #ARGV do
	local til, rest = string.match(got[i] or '', '^(%d+)( %-.*)$')
	if til then
		n = n + 1
		if til + 0 > now then redis.call('HSET', KEYS[1], ARGV[i], string.format('%d', now) .. rest) end
	end
end
return {n}`)

// Retry makes pushers due that wait for their next try, and lists the user at their gates. It
// returns how many waited.
func (q *Queue) Retry(ctx context.Context, user mxid.UserID, pushers []module.PusherGate) (n int, err error) {
	one := &listedCall{call: hastenCall(q.keys.UserLog(user), pushers), replied: func(reply []any) error {
		n = int(number(reply[0]))
		return nil
	}}
	for _, p := range pushers {
		if entryAt(one.entries, p.Gate) == nil {
			one.entries = append(one.entries, q.newEntry(user, p.Gate, 0, nil))
		}
	}
	q.sendListed(ctx, q.writer.Do, []*listedCall{one})
	return n, one.err
}

func hastenCall(key string, pushers []module.PusherGate) *redisclient.Call {
	names := make([]any, len(pushers))
	for i, p := range pushers {
		names[i] = p.Pusher
	}
	return hasten.Call([]string{key}, names...)
}

// dropLease is the lease of Drop's claims.
const dropLease = 5 * time.Second

// Drop drops what pushers have to send up to a number, unless a host is sending for them. It
// returns the names of the pushers.
func (q *Queue) Drop(ctx context.Context, user mxid.UserID, pushers []module.PusherGate, end int64) (dropped []string, err error) {
	if err := q.writer.Do(ctx, hastenCall(q.keys.UserLog(user), pushers).Command())[0]; err != nil {
		return nil, err
	}
	for len(pushers) > 0 {
		// Any gate will do: a claim at a gate takes the pushers of the caller's list.
		r := module.ClaimRequest{DueUser: module.DueUser{User: user, Gate: pushers[0].Gate}, Lease: dropLease, Limit: 16, Read: 1}
		for _, p := range pushers {
			if p.Gate == r.Gate {
				r.Pushers = append(r.Pushers, p)
			}
		}
		claimed := q.Claim(ctx, []module.ClaimRequest{r})[0]
		if claimed.Err != nil {
			return dropped, claimed.Err
		}
		for _, p := range claimed.Value.Pushers {
			left, err := q.Complete(ctx, p.Claim, module.Done{To: end})
			if err == nil && left > 0 {
				err = q.Postpone(ctx, p.Claim, 0, module.Trouble{}, false)
			}
			if err != nil && !errors.Is(err, module.ErrFenced) {
				return dropped, err
			}
			dropped = append(dropped, p.Claim.Pusher)
		}
		pushers = slices.DeleteFunc(slices.Clone(pushers), func(p module.PusherGate) bool {
			return slices.Contains(dropped, p.Pusher) || p.Gate == r.Gate && len(claimed.Value.Pushers) == 0
		})
	}
	return dropped, nil
}

// Listed returns when a look finds users of a gate at the latest, and how many entries the
// index has of each. A user who is not found is not in the map.
func (q *Queue) Listed(ctx context.Context, gate string, users []mxid.UserID) (at map[mxid.UserID]time.Time, entries int, err error) {
	names := make([]string, len(users))
	for i, user := range users {
		names[i] = string(user)
	}
	var commands []*redisclient.Command
	gates, scores := make([]*redis.FloatCmd, q.Shards), make([][2]*redis.FloatSliceCmd, q.Shards)
	for shard := range q.Shards {
		key := q.keys.ShardGates(shard)
		commands = append(commands, command(key, &gates[shard], func(ctx context.Context, to redisclient.Sender) *redis.FloatCmd { return to.ZScore(ctx, key, gate) }))
		for n, key := range []string{q.keys.ShardDue(shard, gate), q.keys.ShardAfter(shard, gate)} {
			commands = append(commands, command(key, &scores[shard][n], func(ctx context.Context, to redisclient.Sender) *redis.FloatSliceCmd {
				return to.ZMScore(ctx, key, names...)
			}))
		}
	}
	if err := q.read(ctx, commands...); err != nil {
		return nil, 0, err
	}
	at = map[mxid.UserID]time.Time{}
	for shard := range q.Shards {
		for _, of := range scores[shard] {
			for i, score := range of.Val() {
				if score == 0 {
					continue
				}
				entries++
				found := time.UnixMicro(int64(max(score, gates[shard].Val())))
				if old, known := at[users[i]]; gates[shard].Err() == nil && (!known || found.Before(old)) {
					at[users[i]] = found
				}
			}
		}
	}
	return at, entries, nil
}
