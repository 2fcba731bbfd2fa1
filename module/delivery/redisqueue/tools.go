package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// State is what the log of a user says of a pusher.
type State struct {
	stored.PusherState
	Pusher string
}

// Place is a pusher with something to send.
type Place struct {
	State
	User          mxid.UserID
	Notifications int
	Oldest        time.Time // when the first of them was added
	End           int64     // the number of the next notification to be appended
	Now           time.Time // by the clock of the user's log
}

// Places returns the places of users' pushers, without reading texts. It skips a user whose
// log has another type. After an error, it returns the places of the other users.
func (q *Queue) Places(ctx context.Context, users []mxid.UserID) (places []Place, err error) {
	for _, some := range q.Partition(ctx, users) {
		for chunk := range slices.Chunk(some, 100) {
			logs, failed := q.placesByUser(ctx, chunk)
			places = slices.Concat(append([][]Place{places}, logs...)...)
			if err = cmp.Or(err, failed); failed != nil {
				break
			}
		}
	}
	return places, err
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
	one := newListedCall(hastenCall(q.keys.UserLog(user), pushers), func(reply []any) error {
		n = int(number(reply[0]))
		return nil
	})
	for _, p := range pushers {
		if requestAt(one.entries, p.Gate) == nil {
			one.entries = append(one.entries, &listRequest{user: user, gate: p.Gate})
		}
	}
	q.Index.sendListed(ctx, q.writer.Do, []*listedCall{one})
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
