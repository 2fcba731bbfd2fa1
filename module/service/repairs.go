package service

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// Repairs make pushers and the index of pushkeys consistent again after a store lost
// data, a person edited it, or pushers were restored from a backup. The services do not
// need it. It is safe for concurrent use. Errors: see [module.PushkeyIndex].
type Repairs struct{ keys pushkeys }

// NewRepairs returns repairs for stores.
func NewRepairs(stores module.Stores) *Repairs {
	return &Repairs{pushkeys{Stores: stores, changes: noChanges{}, observer: observe.None}}
}

// Record adds a stored pusher to the entry of its pushkey, unless the entry knows the user.
// A pusher of a pushkey that was taken since stays hidden. A pusher without a number gets
// one, as if it were set now beside others.
func (r *Repairs) Record(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	number, at := p.Claim, r.keys.now().UnixMicro()
	_, err := r.keys.Pushkeys.Update(ctx, p.Digest(), func(e *pusher.Entry) error {
		if number = p.Claim; number > 0 || e.Knows(user) {
			e.Record(pusher.Holder{User: user, Number: number})
			return nil
		}
		number = e.Claim(user, pusher.KeepOthers, at)
		return nil
	})
	if err != nil || number == p.Claim {
		return err
	}
	return r.keys.Pushers.Update(ctx, user, func(list *pusher.List) error {
		if held, found := list.Pusher(p.Key); found && held.Claim == p.Claim {
			held.Claim = number
			list.Set(held)
		}
		return nil
	})
}

// Release removes users without a pusher from the entry of a pushkey; see [Unused].
func (r *Repairs) Release(ctx context.Context, key pusher.Digest, unused []pusher.Holder) error {
	_, err := r.keys.Pushkeys.Update(ctx, key, func(e *pusher.Entry) error {
		for _, h := range unused {
			e.Release(h)
		}
		e.Forget(unused)
		return nil
	})
	return err
}

// unusedAge is the age of a number without a pusher. A pusher is stored within half a minute
// of its claim, or never.
const unusedAge = 10 * time.Minute

// Unused returns the holders and losers of an entry who have had no pusher for ten minutes,
// if the users with a pusher are known. Now is by the clock of the stores; see
// [module.Stores.Now].
func Unused(e pusher.Entry, hasPusher func(mxid.UserID) bool, now time.Time) (unused []pusher.Holder) {
	for _, all := range [][]pusher.Holder{e.Holders, e.Losers} {
		for _, h := range all {
			if !hasPusher(h.User) && now.Sub(time.UnixMicro(h.Number)) > unusedAge {
				unused = append(unused, h)
			}
		}
	}
	return unused
}
