package service

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
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
	return &Repairs{pushkeys{Stores: stores, observer: observe.None}}
}

// Record adds a stored pusher to the index. A pusher without a claim, or with the number
// of another user's claim, gets a new claim, which comes after all others and removes no
// other user's pusher. If other users claim the pushkey, too, the claims decide within
// two minutes which user keeps it.
func (r *Repairs) Record(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	if p.Claim.Number == 0 { // not set by the service
		return r.giveClaim(ctx, user, p)
	}
	err := r.restoreClaim(ctx, p.Digest(), pusher.Owner{User: user, Claim: p.Claim.Number})
	if errors.Is(err, errClaimTaken) {
		return r.giveClaim(ctx, user, p)
	}
	return err
}

var errClaimTaken = errors.New("another user has a claim of this number")

func (r *Repairs) restoreClaim(ctx context.Context, key pusher.Digest, claim pusher.Owner) error {
	claims, err := r.keys.Pushkeys.Update(ctx, key, func(c *pusher.Claims) error {
		if !c.Restore(claim) {
			return errClaimTaken
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.markShared(ctx, key, claim.User, claims)
}

// markShared marks a key as pending if other users claim it.
func (r *Repairs) markShared(ctx context.Context, key pusher.Digest, user mxid.UserID, claims pusher.Claims) error {
	if _, rival := claims.Last(user); rival == 0 {
		return nil
	}
	return r.keys.Pushkeys.MarkPending(ctx, module.PendingPushkey{Key: key, Claim: claims.Newest()})
}

func (r *Repairs) giveClaim(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	var number int64
	claims, err := r.keys.Pushkeys.Update(ctx, p.Digest(), func(c *pusher.Claims) error {
		number = c.Add(user, r.keys.now().UnixMicro())
		return nil
	})
	if err == nil {
		err = r.markShared(ctx, p.Digest(), user, claims)
	}
	if err != nil {
		return err
	}
	given := false
	err = r.keys.Pushers.Update(ctx, user, func(list *pusher.List) error {
		held, found := list.Pusher(p.Key)
		if given = found && held.Claim == p.Claim; given {
			held.Claim = pusher.KeepOthers.Claim(number)
			list.Set(held)
		}
		return nil
	})
	if err == nil && given || fault.KindOf(err) == fault.Unavailable {
		return err
	}
	return errors.Join(err, r.keys.drop(ctx, p.Digest(), pusher.Owner{User: user, Claim: number}))
}

// Release drops claims without a pusher; see [PushkeyProblems].
func (r *Repairs) Release(ctx context.Context, key pusher.Digest, claims []pusher.Owner) error {
	return r.keys.dropAll(ctx, key, claims)
}

// PushkeyProblems are the inconsistencies of a pushkey that is not pending.
type PushkeyProblems struct {
	Abandoned []pusher.Owner // claims without a pusher, too old to get one
	TooMany   []pusher.Owner // pushers that a later claim should have removed
}

// ProblemsOfPushkey compares the claims to a key with the pushers of the claiming users.
// Now is by the clock of the stores; see [module.Stores.Now].
func ProblemsOfPushkey(claims pusher.Claims, held map[mxid.UserID]pusher.Pusher, now time.Time) (p PushkeyProblems) {
	for _, claim := range withoutPushers(claims, held) {
		if now.Sub(time.UnixMicro(claim.Claim)) > claimAge {
			p.Abandoned = append(p.Abandoned, claim)
		}
	}
	var lastRemoval int64 // pushers with smaller claim numbers had to go
	for _, h := range held {
		lastRemoval = max(lastRemoval, h.Claim.Removes)
	}
	for user, h := range held {
		if h.Claim.Number < lastRemoval {
			p.TooMany = append(p.TooMany, pusher.Owner{User: user, Claim: h.Claim.Number})
		}
	}
	return p
}
