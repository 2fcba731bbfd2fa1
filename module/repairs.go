package module

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Repairs make the pushers and the index of pushkeys consistent again after
// something from outside came between them: a store that lost a part of its data,
// a hand that edited it, pushers brought back from a copy. The services need none
// of it. It is safe for concurrent use. Errors: the stores'.
type Repairs struct{ keys pushkeys }

// NewRepairs returns the repairs of what stores keep.
func NewRepairs(stores Stores) *Repairs {
	return &Repairs{pushkeys{Stores: stores}}
}

// Record adds a stored pusher to the index. A pusher without a claim, or with the number
// of another user's claim, gets a new claim, which comes after all others and removes no
// pusher of another user. If other users claim the pushkey, too, the claims decide
// within two minutes who keeps it.
func (r *Repairs) Record(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	if p.Claim.Number == 0 { // set in the store and not by the service
		return r.giveClaim(ctx, user, p)
	}
	err := r.restoreClaim(ctx, p.Digest(), pusher.Owner{User: user, Claim: p.Claim.Number})
	if errors.Is(err, errClaimTaken) {
		return r.giveClaim(ctx, user, p)
	}
	return err
}

// errClaimTaken is for a claim whose number another user has.
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

// markShared has a key reconciled if other users claim it, too.
func (r *Repairs) markShared(ctx context.Context, key pusher.Digest, user mxid.UserID, claims pusher.Claims) error {
	if _, rival := claims.Last(user); rival == 0 {
		return nil
	}
	return r.keys.Pushkeys.MarkPending(ctx, PendingPushkey{key, claims.Newest()})
}

func (r *Repairs) giveClaim(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	var number int64
	claims, err := r.keys.Pushkeys.Update(ctx, p.Digest(), func(c *pusher.Claims) error {
		number = c.Add(user, r.keys.time().UnixMicro())
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

// Release drops claims that no pusher has; see [PushkeyProblems].
func (r *Repairs) Release(ctx context.Context, key pusher.Digest, claims []pusher.Owner) error {
	return r.keys.dropAll(ctx, key, claims)
}

// PushkeyProblems are what is wrong with a pushkey, unless it is still to be
// reconciled.
type PushkeyProblems struct {
	Abandoned []pusher.Owner // claims that no pusher has, and that are so old that none will come
	TooMany   []pusher.Owner // pushers that a later claim should have removed
}

// ProblemsOfPushkey compares the claims to a key with the pushers of those who
// claim it, at a time by the stores' clock; see [Stores.Now].
func ProblemsOfPushkey(claims pusher.Claims, held map[mxid.UserID]pusher.Pusher, now time.Time) (p PushkeyProblems) {
	for _, claim := range withoutPushers(claims, held) {
		if now.Sub(time.UnixMicro(claim.Claim)) > claimAge {
			p.Abandoned = append(p.Abandoned, claim)
		}
	}
	var first int64 // that is not removed
	for _, h := range held {
		first = max(first, h.Claim.Removes)
	}
	for user, h := range held {
		if h.Claim.Number < first {
			p.TooMany = append(p.TooMany, pusher.Owner{User: user, Claim: h.Claim.Number})
		}
	}
	return p
}
