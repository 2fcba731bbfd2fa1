package module

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// pushkeys decides who owns a pushkey: of the users whose pusher of it is
// stored, the last who claimed it for themselves, and those who joined since.
type pushkeys struct {
	index   PushkeyIndex
	pushers PusherStore
}

// A claim without a pusher is one that is being set, or was given up. Both
// times allow for clocks that differ by some minutes; no operation takes longer
// than half a minute.
const (
	claimAge      = 10 * time.Minute // from when on it counts as given up
	settlementAge = time.Minute      // from when on a postponed settlement is looked at
)

// claim adds a claim of a user to a key. Shared is true when others claim it.
func (k pushkeys) claim(
	ctx context.Context, user mxid.UserID, key pusher.Digest, others pusher.Others, policy pusher.Policy,
) (number int64, shared bool, err error) {
	at := now()
	claims, err := k.index.Update(ctx, key, func(c *pusher.Claims) error {
		before := len(c.Users())
		number = c.Add(user, at)
		if others == pusher.RemoveOthers {
			return nil // it will not be shared
		}
		return policy.CheckSharing(before, c)
	})
	if err != nil {
		return 0, false, err
	}
	_, rival := claims.Last(user)
	return number, rival != 0, nil
}

// drop takes back a claim; that of number 0 is none.
func (k pushkeys) drop(ctx context.Context, key pusher.Digest, claim pusher.Owner) error {
	if claim.Claim == 0 {
		return nil
	}
	return k.dropAll(ctx, key, []pusher.Owner{claim})
}

// release is drop where there is no pusher of the claim any more. That it fails
// does no harm: such a claim is dropped when the key is settled next.
func (k pushkeys) release(ctx context.Context, key pusher.Digest, claim pusher.Owner) {
	_ = k.drop(ctx, key, claim)
}

// settle removes the owners too many of a key, and says so, unless there are
// claims whose pushers may still come. After those it is looked at again. What
// taker claims removes others even if its pusher has been removed meanwhile.
func (k pushkeys) settle(ctx context.Context, u Unsettled, taker pusher.Owner) error {
	claims, err := k.index.Load(ctx, u.Key)
	if err != nil {
		return err
	}
	held, err := k.held(ctx, u.Key, claims)
	if err != nil {
		return err
	}
	gone, err := k.removeLosers(ctx, u.Key, held, taker)
	if err != nil {
		return err
	}
	given, pending := givenUp(claims, held)
	if err := k.dropAll(ctx, u.Key, append(gone, given...)); err != nil {
		return err
	}
	if pending {
		return nil
	}
	return k.index.Settled(ctx, Unsettled{u.Key, max(u.Claim, claims.Newest())})
}

// held returns the pushers of a key that are stored, by user.
func (k pushkeys) held(ctx context.Context, key pusher.Digest, claims pusher.Claims) (map[mxid.UserID]pusher.Pusher, error) {
	held := map[mxid.UserID]pusher.Pusher{}
	for user, loaded := range k.pushers.LoadMany(ctx, claims.Users()) {
		if fault.KindOf(loaded.Err) == fault.Database {
			continue // nothing is sent to a pusher that cannot be read
		}
		if loaded.Err != nil {
			return nil, loaded.Err
		}
		for _, p := range loaded.Value.All() {
			if p.Digest() == key {
				held[user] = p
			}
		}
	}
	return held, nil
}

// removeLosers removes the pushers whose claims come before one that removes
// others, that of taker included, and returns what they claimed.
func (k pushkeys) removeLosers(
	ctx context.Context, key pusher.Digest, held map[mxid.UserID]pusher.Pusher, taker pusher.Owner,
) ([]pusher.Owner, error) {
	var first int64 // that is not removed
	for _, p := range held {
		first = max(first, p.Claim.Removes)
	}
	var gone []pusher.Owner
	for _, user := range slices.Sorted(maps.Keys(held)) {
		lost, least := held[user].Claim.Number, first
		if user != taker.User {
			least = max(least, taker.Claim)
		}
		if lost >= least {
			continue
		}
		var removed []pusher.Pusher
		err := k.pushers.Update(ctx, user, func(list *pusher.List) error {
			removed = list.Remove(func(p pusher.Pusher) bool { return p.Digest() == key && p.Claim.Number < least })
			return nil
		})
		if err != nil {
			return nil, err
		}
		gone = append(gone, pusher.Owner{User: user, Claim: lost}) // even if another host was first
		for _, p := range removed {
			gone = append(gone, pusher.Owner{User: user, Claim: p.Claim.Number})
		}
	}
	return gone, nil
}

// givenUp returns the claims that no pusher has and that are so old that none
// will come; pending is true when there are younger ones.
func givenUp(claims pusher.Claims, held map[mxid.UserID]pusher.Pusher) (given []pusher.Owner, pending bool) {
	oldest := now() - claimAge.Microseconds()
	for _, owner := range claims.Owners() {
		p, found := held[owner.User]
		switch {
		case found && p.Claim.Number == owner.Claim:
		case owner.Claim >= oldest:
			pending = true
		default:
			given = append(given, owner)
		}
	}
	return given, pending
}

func (k pushkeys) dropAll(ctx context.Context, key pusher.Digest, owners []pusher.Owner) error {
	if len(owners) == 0 {
		return nil
	}
	_, err := k.index.Update(ctx, key, func(c *pusher.Claims) error {
		for _, owner := range owners {
			c.Release(owner)
		}
		return nil
	})
	return err
}

// maxSettlements bounds how much one call of [SettlePushkeys] does.
const maxSettlements = 1000

// SettlePushkeys finishes what was left undone where a host died, or a store
// failed, while a pusher was set that takes a pushkey from other users; see
// [HostService.SettlePushkeys]. A pushkey that fails does not keep the others
// from it. To call it more than once at a time does no harm.
func SettlePushkeys(ctx context.Context, pushers PusherStore, index PushkeyIndex) error {
	k := pushkeys{index, pushers}
	postponed, err := index.Postponed(ctx, time.Now().Add(-settlementAge), maxSettlements)
	failures := []error{err}
	for _, u := range postponed {
		failures = append(failures, k.settle(ctx, u, pusher.Owner{}))
	}
	return errors.Join(failures...)
}
