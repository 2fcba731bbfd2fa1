package module

import (
	"context"
	"errors"
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

// claim makes a user's claim to a key the last one.
func (k pushkeys) claim(
	ctx context.Context, user mxid.UserID, key pusher.Digest, policy pusher.Policy,
) (number int64, claims pusher.Claims, err error) {
	at := now()
	claims, err = k.index.Update(ctx, key, func(c *pusher.Claims) error {
		before := len(c.Owners())
		number = c.Add(user, at)
		return policy.CheckSharing(before, c)
	})
	return number, claims, err
}

// drop takes back the claim of a pusher.
func (k pushkeys) drop(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	if p.Claim.Number == 0 {
		return nil
	}
	_, err := k.index.Update(ctx, p.Digest(), func(c *pusher.Claims) error {
		c.Release(pusher.Owner{User: user, Claim: p.Claim.Number})
		return nil
	})
	return err
}

// release is drop where the pusher is gone already. That it fails does no harm:
// a claim without a pusher is dropped when the key is settled next.
func (k pushkeys) release(ctx context.Context, user mxid.UserID, p pusher.Pusher) {
	_ = k.drop(ctx, user, p)
}

// settle removes the owners too many of a key, and says so, unless there are
// claims whose pushers may still come. After those it is looked at again.
func (k pushkeys) settle(ctx context.Context, u Unsettled) error {
	claims, err := k.index.Load(ctx, u.Key)
	if err != nil {
		return err
	}
	held, err := k.held(ctx, u.Key, claims)
	if err != nil {
		return err
	}
	gone, err := k.removeLosers(ctx, u.Key, held)
	if err != nil {
		return err
	}
	given, pending := givenUp(claims, held)
	if err := k.releaseAll(ctx, u.Key, append(gone, given...)); err != nil {
		return err
	}
	if pending {
		return nil
	}
	return k.index.Settled(ctx, u)
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

// removeLosers removes the pushers with a claim before that of the owner, and
// returns what they claimed.
func (k pushkeys) removeLosers(ctx context.Context, key pusher.Digest, held map[mxid.UserID]pusher.Pusher) ([]pusher.Owner, error) {
	var last int64
	for _, p := range held {
		if p.Claim.Others == pusher.RemoveOthers {
			last = max(last, p.Claim.Number)
		}
	}
	var gone []pusher.Owner
	for user, p := range held {
		if p.Claim.Number >= last {
			continue
		}
		var removed []pusher.Pusher
		err := k.pushers.Update(ctx, user, func(list *pusher.List) error {
			removed = list.Remove(func(p pusher.Pusher) bool { return p.Digest() == key && p.Claim.Number < last })
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, p := range removed {
			gone = append(gone, pusher.Owner{User: user, Claim: p.Claim.Number})
		}
	}
	return gone, nil
}

// givenUp returns the claims of users without a pusher that are so old that
// none will come; pending is true when there are younger ones.
func givenUp(claims pusher.Claims, held map[mxid.UserID]pusher.Pusher) (given []pusher.Owner, pending bool) {
	oldest := now() - claimAge.Microseconds()
	for _, owner := range claims.Owners() {
		p, found := held[owner.User]
		switch {
		case found && p.Claim.Number >= owner.Claim:
		case owner.Claim >= oldest:
			pending = true
		case !found:
			given = append(given, owner)
		}
	}
	return given, pending
}

func (k pushkeys) releaseAll(ctx context.Context, key pusher.Digest, owners []pusher.Owner) error {
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
		failures = append(failures, k.settle(ctx, u))
	}
	return errors.Join(failures...)
}
