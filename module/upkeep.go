package module

import (
	"context"
	"errors"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// What follows keeps the index of pushkeys and the pushers consistent where
// something from outside came between them: a store that lost a part of its
// data, a hand that edited it, pushers brought back from a copy. The services
// need none of it.

// ErrClaimTaken is for a claim whose number another user has.
var ErrClaimTaken = errors.New("another user has a claim of this number")

// RestoreClaim has the index know of the claim of a pusher that is stored. Where
// others claim the key, too, it is settled within two minutes who keeps it, by
// the numbers of the claims. Errors: [ErrClaimTaken], the index's.
func RestoreClaim(ctx context.Context, index PushkeyIndex, key pusher.Digest, claim pusher.Owner) error {
	claims, err := index.Update(ctx, key, func(c *pusher.Claims) error {
		if !c.Restore(claim) {
			return ErrClaimTaken
		}
		return nil
	})
	if err != nil {
		return err
	}
	return postponeShared(ctx, index, key, claim.User, claims)
}

// postponeShared has a key settled that other users claim, too.
func postponeShared(ctx context.Context, index PushkeyIndex, key pusher.Digest, user mxid.UserID, claims pusher.Claims) error {
	if _, rival := claims.Last(user); rival == 0 {
		return nil
	}
	return index.Postpone(ctx, Unsettled{key, claims.Newest()})
}

// GiveClaim gives a claim to a stored pusher without one, or with one that
// another user has. It comes after all others and removes nobody's pusher.
// Errors: the stores'.
func GiveClaim(ctx context.Context, pushers PusherStore, index PushkeyIndex, user mxid.UserID, p pusher.Pusher) error {
	var number int64
	claims, err := index.Update(ctx, p.Digest(), func(c *pusher.Claims) error {
		number = c.Add(user, now())
		return nil
	})
	if err == nil {
		err = postponeShared(ctx, index, p.Digest(), user, claims)
	}
	if err != nil {
		return err
	}
	given := false
	err = pushers.Update(ctx, user, func(list *pusher.List) error {
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
	return errors.Join(err, pushkeys{index, pushers}.drop(ctx, p.Digest(), pusher.Owner{User: user, Claim: number}))
}

// ReleaseClaims takes back claims that no pusher has; see [PushkeyFaults].
func ReleaseClaims(ctx context.Context, index PushkeyIndex, key pusher.Digest, claims []pusher.Owner) error {
	return pushkeys{index: index}.dropAll(ctx, key, claims)
}

// PushkeyFaults are what is wrong with a pushkey of which claims and pushers are
// known, unless it is to be settled still.
type PushkeyFaults struct {
	GivenUp []pusher.Owner // claims that no pusher has, and that are so old that none will come
	TooMany []pusher.Owner // pushers that a later claim should have removed
}

// FaultsOfPushkey looks at the claims to a key and at the pushers of it that
// those who claim it have.
func FaultsOfPushkey(claims pusher.Claims, held map[mxid.UserID]pusher.Pusher) (f PushkeyFaults) {
	f.GivenUp, _ = givenUp(claims, held)
	var first int64 // that is not removed
	for _, p := range held {
		first = max(first, p.Claim.Removes)
	}
	for user, p := range held {
		if p.Claim.Number < first {
			f.TooMany = append(f.TooMany, pusher.Owner{User: user, Claim: p.Claim.Number})
		}
	}
	return f
}
