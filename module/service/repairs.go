package service

import (
	"context"
	"slices"

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

// IsMissing reports whether a user's pusher is missing in the entry of its pushkey: it has no
// number, or it is an address and the entry does not name the user.
func IsMissing(user mxid.UserID, p pusher.Pusher, e pusher.Entry) bool {
	return p.Claim == 0 || p.Kind.IsAddress() && len(e.Users) < pusher.MaxUsers && !slices.Contains(e.Users, user)
}

// Record changes the entry of a pusher's pushkey as if the pusher were set now beside others,
// if [IsMissing] reports true. A pusher without a number gets the number.
func (r *Repairs) Record(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	at := r.keys.now().UnixMicro()
	entry, err := r.keys.Pushkeys.Update(ctx, p.Digest(), func(e *pusher.Entry) error {
		if IsMissing(user, p, *e) {
			e.Claim(user, pusher.KeepOthers, at)
			e.Address = p.Kind.IsAddress()
		}
		return nil
	})
	if err != nil || p.Claim > 0 {
		return err
	}
	return r.keys.Pushers.Update(ctx, user, func(list *pusher.List) error {
		if held, found := list.Pusher(p.Key); found && held.Claim == 0 {
			held.Claim = entry.Last
			list.Set(held)
		}
		return nil
	})
}
