package service

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// pushkeys decides which users keep a pushkey: the last user that took it from others
// and has a pusher of it, and the users that shared it later.
type pushkeys struct {
	module.Stores
	observer observe.Observer // of removed pushers
	unused   *unusedClaims    // nil if claims without a pusher are not tracked
}

// now returns the time by the stores' clock.
func (k pushkeys) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}

// claim adds a user's claim to a key. Pending reports that it has marked the key as
// pending, because other users claim it and one of the claims may remove a pusher. It
// refuses an imported pusher of a key that another user has taken.
func (k pushkeys) claim(
	ctx context.Context, user mxid.UserID, key pusher.Key, others pusher.Others, policy pusher.Policy,
) (number int64, pending bool, err error) {
	at := k.now().UnixMicro()
	claims, err := k.Pushkeys.Update(ctx, key.Digest(), func(c *pusher.Claims) error {
		before := len(c.Users())
		if others == pusher.Imported {
			number = c.AddFirst(user)
		} else {
			number = c.Add(user, at)
		}
		if others == pusher.RemoveOthers {
			return nil // the other users lose the key
		}
		return policy.CheckSharing(before, c)
	})
	if err != nil {
		return 0, false, err
	}
	if _, rival := claims.Last(user); rival == 0 || others == pusher.KeepOthers {
		return number, false, nil
	}
	if others == pusher.Imported {
		if err := k.checkNotTaken(ctx, user, key, claims); err != nil {
			k.release(ctx, key.Digest(), pusher.Owner{User: user, Claim: number})
			return 0, false, err
		}
	}
	return number, true, k.Pushkeys.MarkPending(ctx, module.PendingPushkey{Key: key.Digest(), Claim: claims.Newest()})
}

// checkNotTaken refuses a key that another user has taken. Sharing a key, by "append" or
// by import, does not take it.
func (k pushkeys) checkNotTaken(ctx context.Context, user mxid.UserID, key pusher.Key, claims pusher.Claims) error {
	held, err := k.held(ctx, key, claims)
	for other, p := range held {
		if other != user && p.Claim.Removes != 0 {
			return pusher.ErrTaken
		}
	}
	return err
}

// drop removes a claim from the index. A claim with number 0 does not exist.
func (k pushkeys) drop(ctx context.Context, key pusher.Digest, claim pusher.Owner) error {
	if claim.Claim == 0 {
		return nil
	}
	return k.dropAll(ctx, key, []pusher.Owner{claim})
}

// release drops the claim of a removed pusher. An error is left out: a claim without its
// pusher is dropped when the pushkey is next reconciled.
func (k pushkeys) release(ctx context.Context, key pusher.Digest, claim pusher.Owner) {
	_ = k.drop(ctx, key, claim)
}

// reconcile removes the pushers of users who have lost the key according to the claims,
// and then clears the pending mark as conclude does. A request that takes the key names its
// user and claim as taker: the claim removes other pushers even if the user's own pusher is
// gone by now. Other callers pass the zero Owner.
func (k pushkeys) reconcile(ctx context.Context, key pusher.Key, claims pusher.Claims, last int64, taker pusher.Owner) error {
	held, err := k.held(ctx, key, claims)
	if err != nil {
		return err
	}
	gone, err := k.removeLosers(ctx, held, taker)
	if err != nil {
		return err
	}
	return k.conclude(ctx, key.Digest(), claims, last, held, gone)
}

// conclude drops the claims in gone, and claims that have had no pusher for claimAge.
// Then it clears the key's pending mark up to last and the newest of the claims. The
// mark stays if a younger claim has no pusher yet.
func (k pushkeys) conclude(
	ctx context.Context, key pusher.Digest, claims pusher.Claims, last int64, held map[mxid.UserID]pusher.Pusher, gone []pusher.Owner,
) error {
	abandoned, pending := k.unused.observe(key, withoutPushers(claims, held))
	if err := k.dropAll(ctx, key, append(gone, abandoned...)); err != nil {
		return err
	}
	if pending {
		return nil
	}
	return k.Pushkeys.ClearPending(ctx, module.PendingPushkey{Key: key, Claim: max(last, claims.Newest())})
}

func (k pushkeys) reconcilePending(ctx context.Context, u module.PendingPushkey) error {
	claims, err := k.Pushkeys.Load(ctx, u.Key)
	if err != nil {
		return err
	}
	key, found, err := k.keyOf(ctx, u.Key, claims)
	switch {
	case err != nil:
		return err
	case !found:
		return k.conclude(ctx, u.Key, claims, u.Claim, nil, nil)
	}
	return k.reconcile(ctx, key, claims, u.Claim, pusher.Owner{})
}

// keyOf finds the key of a digest. It loads the claiming users' pushers one by one, since
// the first usually has the key.
func (k pushkeys) keyOf(ctx context.Context, digest pusher.Digest, claims pusher.Claims) (key pusher.Key, found bool, err error) {
	for _, user := range claims.Users() {
		list, err := k.Pushers.Load(ctx, user)
		if isUnreadable(err) {
			continue
		}
		if err != nil {
			return pusher.Key{}, false, err
		}
		for _, p := range list.All() {
			if p.Digest() == digest {
				return p.Key, true, nil
			}
		}
	}
	return pusher.Key{}, false, nil
}

// isUnreadable reports whether stored data is damaged. Data in the form of another
// version is not damaged.
func isUnreadable(err error) bool {
	return fault.KindOf(err) == fault.Database && !fault.IsOtherVersion(err)
}

// held returns the stored pusher of a key for each user with a claim.
func (k pushkeys) held(ctx context.Context, key pusher.Key, claims pusher.Claims) (map[mxid.UserID]pusher.Pusher, error) {
	held := map[mxid.UserID]pusher.Pusher{}
	for user, loaded := range k.Pushers.LoadMany(ctx, claims.Users()) {
		if isUnreadable(loaded.Err) {
			continue // an unreadable pusher gets no notifications
		}
		if loaded.Err != nil {
			return nil, loaded.Err
		}
		if p, found := loaded.Value.Pusher(key); found {
			held[user] = p
		}
	}
	return held, nil
}

// removeLosers removes the pushers whose claims precede the last claim that removes
// others. That claim may be taker's. It returns the claims of the removed pushers.
func (k pushkeys) removeLosers(
	ctx context.Context, held map[mxid.UserID]pusher.Pusher, taker pusher.Owner,
) ([]pusher.Owner, error) {
	var first int64 // pushers with smaller claims are removed
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
		key := held[user].Key
		err := k.Pushers.Update(ctx, user, func(list *pusher.List) error {
			removed = list.Remove(func(p pusher.Pusher) bool { return p.Key == key && p.Claim.Number < least })
			return nil
		})
		if err != nil {
			return nil, err
		}
		gone = append(gone, pusher.Owner{User: user, Claim: lost}) // also if another host has removed the pusher
		for _, p := range removed {
			gone = append(gone, pusher.Owner{User: user, Claim: p.Claim.Number})
		}
		k.report(observe.PusherTaken, user, removed)
	}
	return gone, nil
}

// RemovedPusher is the error of [observe.PusherTaken] and [observe.PusherLoggedOut].
type RemovedPusher struct {
	User   mxid.UserID
	Key    pusher.Key // do not log its pushkey
	Device string
}

// Error names the user and not the pushkey.
func (r *RemovedPusher) Error() string { return "a pusher of " + string(r.User) }

func (k pushkeys) report(problem observe.Problem, user mxid.UserID, removed []pusher.Pusher) {
	for _, p := range removed {
		k.observer.Report(problem, &RemovedPusher{user, p.Key, p.Device})
	}
}

func withoutPushers(claims pusher.Claims, held map[mxid.UserID]pusher.Pusher) (unused []pusher.Owner) {
	for _, owner := range claims.Owners() {
		if p, found := held[owner.User]; !found || p.Claim.Number != owner.Claim {
			unused = append(unused, owner)
		}
	}
	return unused
}

func (k pushkeys) dropAll(ctx context.Context, key pusher.Digest, owners []pusher.Owner) error {
	if len(owners) == 0 {
		return nil
	}
	_, err := k.Pushkeys.Update(ctx, key, func(c *pusher.Claims) error {
		for _, owner := range owners {
			c.Release(owner)
		}
		return nil
	})
	return err
}
