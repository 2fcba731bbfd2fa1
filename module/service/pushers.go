package service

import (
	"context"
	"fmt"
	"slices"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ module.PusherService = (*pusherService)(nil)

type pusherService struct {
	store      module.PusherStore
	pushkeys   pushkeys
	reconciler *reconciler
	policy     pusher.Policy
	accounts   module.Accounts
}

func (s *pusherService) List(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	return s.store.Load(ctx, user)
}

func (s *pusherService) Set(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	if err := s.policy.Check(p); err != nil {
		return err
	}
	if p.Kind == pusher.Email {
		if others == pusher.RemoveOthers { // the address may belong to several users
			others = pusher.KeepOthers
		}
		if err := s.confirmAddress(ctx, user, p); err != nil {
			return err
		}
	}
	if others == pusher.Imported { // keeps a pusher that the user has
		return s.claim(ctx, user, p, others)
	}
	claims, err := s.pushkeys.Pushkeys.Load(ctx, p.Digest())
	if err != nil {
		return err
	}
	own, rival := claims.Last(user)
	if own == 0 {
		if err := s.checkGrowth(ctx, user, p, others); err != nil {
			return err
		}
		return s.claim(ctx, user, p, others)
	}
	if own > rival && (rival == 0 || others == pusher.KeepOthers) {
		outcome, err := s.renew(ctx, user, p, others, rival)
		switch {
		case err != nil:
			return err
		case outcome == renewedInSession:
			return nil // see checkLoggedIn
		case outcome == renewedInOther:
			return s.checkLoggedIn(ctx, user, p)
		}
	}
	return s.claim(ctx, user, p, others)
}

// confirmAddress asks the host whether the address of a pusher of kind email is the
// user's.
func (s *pusherService) confirmAddress(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	confirmed, err := s.policy.Email(ctx, user, p.Pushkey)
	switch {
	case err != nil:
		return fault.Wrap(fault.Unavailable, "The server cannot confirm the email address, try again later.",
			fmt.Errorf("email addresses: %w", err))
	case !confirmed:
		return pusher.ErrAddress
	}
	return nil
}

// checkGrowth refuses a new pusher over a limit before anything is written. Storing
// checks the limits again.
func (s *pusherService) checkGrowth(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	list, err := s.store.Load(ctx, user)
	if err != nil {
		return err
	}
	before := list.Size()
	p.SetAt = s.pushkeys.now().UnixMicro()
	p.Claim = others.Claim(p.SetAt) // counts in the pusher's size; the final claim has as many digits
	list.Set(p)
	return s.policy.CheckGrowth(before, list.Size())
}

// renewal is the outcome of a set that keeps the claim of the stored pusher.
type renewal int

const (
	needsClaim       renewal = iota // nothing is stored
	renewedInSession                // the pusher depends on the same session as before
	renewedInOther
)

// renew replaces the user's pusher of the key and keeps its claim, if no other user has
// claimed the key since. For [pusher.RemoveOthers], the kept claim must remove others,
// too. Rival is the last claim of another user, or 0. A claim that removes nobody today
// still matters, for pushers that are imported later.
func (s *pusherService) renew(
	ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others, rival int64,
) (outcome renewal, err error) {
	at := s.pushkeys.now().UnixMicro()
	err = s.store.Update(ctx, user, s.withinLimits(func(list *pusher.List) {
		held, found := list.Pusher(p.Key)
		outcome = needsClaim
		if !found || held.Claim.Number == 0 || held.Claim.Number < rival || others == pusher.RemoveOthers && held.Claim.Removes == 0 {
			return
		}
		p := renewed(held, p, at)
		p.Claim = held.Claim
		outcome = renewedInOther
		if sessionOf(user, held) == sessionOf(user, p) {
			outcome = renewedInSession
		}
		list.Set(p)
	}))
	return outcome, err
}

// renewed returns p, set at the given time, as the successor of the stored pusher held,
// if any. A set that only switches a pusher on or off keeps its device.
func renewed(held, p pusher.Pusher, at int64) pusher.Pusher {
	p.SetAt = max(at, held.SetAt+1)
	if p.DiffersOnlyInEnabled(held) {
		p.Device = held.Device
	}
	return p
}

func (s *pusherService) withinLimits(edit func(*pusher.List)) func(*pusher.List) error {
	return func(list *pusher.List) error {
		before := *list
		edit(list)
		return s.policy.CheckGrowth(before.Size(), list.Size())
	}
}

// claim sets a pusher with a new claim. If the process dies at any point, reconciliation
// can still find every pusher that must go, because of the order of the writes: the claim
// is in the index before the pusher is stored; a key taken from others is marked pending
// before that; and claims are loaded after storing, so that the later of two concurrent
// sets sees both.
//
// With [pusher.KeepOthers] no pusher is removed. Reconciliation is needed only if
// another user has claimed the key since: that user's request may not have seen this
// pusher. The claim of an imported pusher precedes the other users' claims, so such a
// request may have ended long ago.
func (s *pusherService) claim(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	number, pending, err := s.pushkeys.claim(ctx, user, p.Key, others, s.policy)
	if err != nil {
		return err
	}
	p.Claim = others.Claim(number)
	if err := s.put(ctx, user, p, others); err != nil {
		return err
	}
	if err := s.checkLoggedIn(ctx, user, p); err != nil {
		return err
	}
	claims, err := s.pushkeys.Pushkeys.Load(ctx, p.Digest())
	if err != nil {
		return err
	}
	_, rival := claims.Last(user)
	if pending || rival > number || rival != 0 && others == pusher.RemoveOthers {
		return s.pushkeys.reconcile(ctx, p.Key, claims, number, pusher.Owner{User: user, Claim: p.Claim.Removes})
	}
	return nil
}

// put stores a pusher. It joins the claim with the claim of the replaced pusher, because
// a concurrent request of the user may have claimed since, and releases the unused claim.
func (s *pusherService) put(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	var spare int64
	at := s.pushkeys.now().UnixMicro()
	err := s.store.Update(ctx, user, s.withinLimits(func(list *pusher.List) {
		held, found := list.Pusher(p.Key)
		next := p
		switch {
		case others != pusher.Imported:
			next = renewed(held, p, at)
		case found:
			next = held // newer than the import
		case p.SetAt <= 0 || p.SetAt > at:
			next.SetAt = at
		}
		next.Claim, spare = p.Claim.Join(held.Claim)
		list.Set(next)
	}))
	switch {
	case err == nil:
		s.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: user, Claim: spare})
	case fault.KindOf(err) != fault.Unavailable: // after Unavailable the pusher may be stored
		s.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: user, Claim: p.Claim.Number})
	}
	return err
}

// checkLoggedIn removes a pusher that was just set if its device was logged out during
// the request. A logout ends the session first and then removes the pushers of its device:
// a pusher that is set after that removal finds the session ended here.
//
// The caller does not ask for a pusher that replaces one of the same session: the logout,
// or the request that set the replaced one, removes both alike.
func (s *pusherService) checkLoggedIn(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	session := sessionOf(user, p)
	loggedIn, err := isLoggedIn(ctx, s.accounts, session.User, session.Device)
	if err != nil || loggedIn {
		return err
	}
	kept, err := s.removeOne(ctx, user, p.Key, func(q pusher.Pusher) bool { return q.Device == p.Device })
	if err != nil {
		return err
	}
	if !kept { // otherwise another request's pusher may have this claim
		s.pushkeys.report(observe.PusherLoggedOut, user, []pusher.Pusher{p})
		s.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: user, Claim: p.Claim.Number})
	}
	return module.ErrLoggedOut
}

func (s *pusherService) Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	_, err := s.removeOne(ctx, user, key, func(pusher.Pusher) bool { return true })
	return err
}

// removeLoggedOut removes matching pushers, whose devices are logged out, and then their
// claims, so that the index may name too many users but never too few.
func (s *pusherService) removeLoggedOut(ctx context.Context, user mxid.UserID, match func(pusher.Pusher) bool) error {
	var removed []pusher.Pusher
	err := s.store.Update(ctx, user, func(list *pusher.List) error {
		removed = list.Remove(match)
		return nil
	})
	if err == nil {
		s.pushkeys.report(observe.PusherLoggedOut, user, removed)
	}
	return s.releaseOf(ctx, user, removed, err)
}

// removeOne removes the pusher of a key if it matches. Kept reports whether a pusher of
// the key stays.
func (s *pusherService) removeOne(
	ctx context.Context, user mxid.UserID, key pusher.Key, match func(pusher.Pusher) bool,
) (kept bool, err error) {
	var removed []pusher.Pusher
	err = s.store.Update(ctx, user, func(list *pusher.List) error {
		removed = list.Remove(func(p pusher.Pusher) bool { return p.Key == key && match(p) })
		_, kept = list.Pusher(key)
		return nil
	})
	return kept, s.releaseOf(ctx, user, removed, err)
}

// releaseOf releases the claims of removed pushers. Err is the error of the removal:
// after an error the pushers may still be stored, so the claims stay.
func (s *pusherService) releaseOf(ctx context.Context, user mxid.UserID, removed []pusher.Pusher, err error) error {
	if err != nil {
		return err
	}
	for _, p := range removed {
		s.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: user, Claim: p.Claim.Number})
	}
	return nil
}

func (s *pusherService) removeDevices(ctx context.Context, user mxid.UserID, devices []string) error {
	return s.removeLoggedOut(ctx, user, func(p pusher.Pusher) bool {
		return p.Kind != pusher.Email && p.Device != "" && slices.Contains(devices, p.Device)
	})
}

func (s *pusherService) keepOnlyDevice(ctx context.Context, user mxid.UserID, device string) error {
	return s.removeLoggedOut(ctx, user, func(p pusher.Pusher) bool {
		return p.Kind != pusher.Email && (p.Device == "" || p.Device != device)
	})
}

// retainDevices removes the pushers of devices that are not in live, unless the host
// reports them as logged in. It asks again about a pusher that was set again since. If
// the host cannot answer, the pusher stays: its device may have logged in since.
func (s *pusherService) retainDevices(ctx context.Context, user mxid.UserID, live []string) error {
	for {
		setAnew, err := s.retainOnce(ctx, user, live)
		if err != nil || !setAnew || s.accounts == nil {
			return err
		}
	}
}

func (s *pusherService) retainOnce(ctx context.Context, user mxid.UserID, live []string) (setAnew bool, err error) {
	list, err := s.store.Load(ctx, user)
	if err != nil {
		return false, err
	}
	list.Remove(func(p pusher.Pusher) bool {
		return p.Kind == pusher.Email || p.Device == "" || slices.Contains(live, p.Device)
	})
	gone, err := s.withoutSession(ctx, user, list)
	if err != nil || gone.Len() == 0 {
		return false, err
	}
	err = s.removeLoggedOut(ctx, user, func(p pusher.Pusher) bool {
		q, found := gone.Pusher(p.Key)
		same := found && p.Device == q.Device && p.Claim == q.Claim && p.SetAt == q.SetAt
		setAnew = setAnew || found && !same
		return same
	})
	return setAnew, err
}

// withoutSession returns the pushers whose sessions are not logged in, or all pushers if
// the host has no accounts.
func (s *pusherService) withoutSession(ctx context.Context, user mxid.UserID, list pusher.List) (pusher.List, error) {
	accounts := s.accounts
	if accounts == nil {
		return list, nil
	}
	answers := areLoggedIn(ctx, accounts, sessionsOf(map[mxid.UserID]module.Result[pusher.List]{user: {Value: list}}))
	live, err := answers.live(user, list)
	list.Remove(func(p pusher.Pusher) bool {
		_, found := live.Pusher(p.Key)
		return found
	})
	return list, err
}

// loadLive returns the pushers of many users whose sessions are logged in. A user whose
// sessions cannot be checked gets an error.
func (s *pusherService) loadLive(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	all := s.store.LoadMany(ctx, users)
	accounts := s.accounts
	if accounts == nil {
		return all
	}
	answers := areLoggedIn(ctx, accounts, sessionsOf(all))
	for user, loaded := range all {
		if loaded.Err == nil {
			live, err := answers.live(user, loaded.Value)
			all[user] = module.Result[pusher.List]{Value: live, Err: err}
		}
	}
	return all
}

// forget removes the claims first, so that a repetition finds the remaining ones.
func (s *pusherService) forget(ctx context.Context, user mxid.UserID) error {
	for {
		list, err := s.store.Load(ctx, user)
		if err != nil && !isUnreadable(err) {
			return err
		}
		if list.Len() == 0 {
			return s.store.Delete(ctx, user)
		}
		if err := s.forgetPushers(ctx, user, list.All()); err != nil {
			return err
		}
	}
}

func (s *pusherService) forgetPushers(ctx context.Context, user mxid.UserID, pushers []pusher.Pusher) error {
	for _, p := range pushers {
		err := s.pushkeys.drop(ctx, p.Digest(), pusher.Owner{User: user, Claim: p.Claim.Number})
		if err != nil && !isUnreadable(err) {
			return err
		}
	}
	return s.store.Update(ctx, user, func(list *pusher.List) error {
		list.Remove(func(p pusher.Pusher) bool {
			return slices.ContainsFunc(pushers, func(q pusher.Pusher) bool { return q.Key == p.Key && q.Claim == p.Claim })
		})
		return nil
	})
}
