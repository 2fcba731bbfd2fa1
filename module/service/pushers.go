package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/retry"
)

var _ module.PusherService = (*pusherService)(nil)

type pusherService struct {
	store    module.PusherStore
	pushkeys pushkeys
	policy   pusher.Policy
	accounts module.Accounts

	activation Activation // may be nil
}

// List reads the pushers again if some are hidden: if they have not changed, the result is
// what was visible at one moment. If none is hidden, all were visible at the first reading.
func (s *pusherService) List(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	list, err := s.store.Load(ctx, user)
	for err == nil {
		one, read := map[mxid.UserID]module.Result[pusher.List]{user: {Value: list}}, list
		if s.pushkeys.judge(ctx, one) {
			return one[user].Value, nil
		}
		if list, err = s.store.Load(ctx, user); err == nil && list.Equal(read) {
			return one[user].Value, nil
		}
	}
	return pusher.List{}, err
}

func (s *pusherService) Set(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	p.Key = p.Canonical()
	if err := s.policy.Check(p); err != nil {
		return err
	}
	if p.Kind.IsAddress() {
		if others == pusher.RemoveOthers { // the address may belong to several users
			others = pusher.KeepOthers
		}
		if err := s.confirmAddress(ctx, user, p); err != nil {
			return err
		}
	}
	set := setting{s, user, p, others, noClaim}
	last, done, err := set.begin(ctx)
	if done && err == nil {
		return set.invite(ctx)
	}
	if err != nil {
		return err
	}
	number, entry, lost, err := s.pushkeys.claim(ctx, user, p, others, last)
	if err == nil {
		err = set.put(ctx, number)
	}
	if err != nil {
		return err
	}
	s.pushkeys.removeHidden(ctx, lost, p.Key, entry)
	if err := set.checkLoggedIn(ctx); err != nil {
		return err
	}
	return set.invite(ctx)
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

// setting is a call of Set. Each of its steps is one atomic change of the pushkey's entry or
// of the user's pushers, and the process may die between any two: the entry gives a number,
// then the pusher is stored with it. If a set that takes the pushkey dies in between, the
// others have lost it already.
type setting struct {
	*pusherService
	user   mxid.UserID
	p      pusher.Pusher
	others pusher.Others
	hidden int64 // the claim of a stored pusher that is not visible, or noClaim
}

const noClaim = -1

// begin ends a set that needs no new number, and refuses a pusher over a limit before
// anything is written. Storing checks the limits again. It returns the claim of the stored
// pusher, if any.
func (s *setting) begin(ctx context.Context) (claim int64, done bool, err error) {
	for {
		list, entry, err := s.load(ctx)
		if err != nil {
			return 0, false, err
		}
		held, found := list.Pusher(s.p.Key)
		isShown := found && entry.Shows(s.user, held.Claim)
		if s.hidden = noClaim; found && !isShown {
			s.hidden = held.Claim
		}
		switch {
		case isShown && s.others == pusher.Imported:
			return held.Claim, true, nil
		case !entry.Keeps(s.user, held.Claim, s.others, s.pushkeys.now().UnixMicro()):
			return held.Claim, false, s.makeRoom(ctx, list)
		}
		if done, err := s.renew(ctx, held.Claim); done || err != nil {
			return held.Claim, done, err
		}
	}
}

// load reads the user's pushers and the entry of the pushkey side by side.
func (s *setting) load(ctx context.Context) (list pusher.List, entry pusher.Entry, err error) {
	var failed error
	var loading sync.WaitGroup
	loading.Go(func() { entry, failed = s.pushkeys.Pushkeys.Load(ctx, s.p.Digest()) })
	list, err = s.store.Load(ctx, s.user)
	loading.Wait()
	return list, entry, cmp.Or(err, failed)
}

// makeRoom refuses a pusher over a limit of the user's pushers. Before, it removes pushers
// that are hidden.
func (s *setting) makeRoom(ctx context.Context, list pusher.List) error {
	if s.checkRoom(list) == nil {
		return nil
	}
	all := map[mxid.UserID]module.Result[pusher.List]{s.user: {Value: list}}
	s.pushkeys.judge(ctx, all)
	shown := all[s.user].Value
	if shown.Len() == list.Len() {
		return s.checkRoom(list)
	}
	_, err := s.drop(ctx, s.user, func(p pusher.Pusher) bool {
		_, isShown := shown.Pusher(p.Key)
		read, wasRead := list.Pusher(p.Key)
		return wasRead && !isShown && p.Claim == read.Claim
	})
	return cmp.Or(err, s.checkRoom(shown))
}

func (s *setting) checkRoom(list pusher.List) error {
	before, p := list.Size(), s.p
	p.SetAt = s.pushkeys.now().UnixMicro()
	p.Claim = p.SetAt // counts in the pusher's size; the number has as many digits
	s.replace(&list, p)
	return s.policy.CheckGrowth(before, list.Size())
}

// renew replaces the stored pusher and keeps its number. Done is false if another request
// has changed the number.
func (s *setting) renew(ctx context.Context, claim int64) (done bool, err error) {
	at, sameSession := s.pushkeys.now().UnixMicro(), false
	err = s.store.Update(ctx, s.user, s.withinLimits(func(list *pusher.List) {
		held, found := list.Pusher(s.p.Key)
		if done = found && held.Claim == claim; !done {
			return
		}
		p := renewed(held, s.p, at)
		p.Claim = claim
		sameSession = sessionOf(s.user, held) == sessionOf(s.user, p)
		list.Set(p)
	}))
	if err != nil || !done || sameSession {
		return done, err
	}
	return true, s.checkLoggedIn(ctx)
}

// put stores the pusher with its number. A pusher with a later number of the user stays: that
// request counts as the later one. So a set takes effect once. An import replaces no pusher.
func (s *setting) put(ctx context.Context, number int64) error {
	at := s.pushkeys.now().UnixMicro()
	return s.store.Update(ctx, s.user, s.withinLimits(func(list *pusher.List) {
		held, found := list.Pusher(s.p.Key)
		if found && held.Claim == s.hidden { // a new pusher for the user
			list.Delete(s.p.Key)
			held, found = pusher.Pusher{SetAt: held.SetAt}, false
		}
		if found && (held.Claim > number || s.others == pusher.Imported) {
			return
		}
		next := s.p
		next.Claim = number
		switch {
		case s.others != pusher.Imported:
			next = renewed(held, next, at)
		case next.SetAt <= 0 || next.SetAt > at:
			next.SetAt = at
		}
		s.replace(list, next)
	}))
}

// replace also removes a pusher of the same address in another spelling.
func (s *setting) replace(list *pusher.List, p pusher.Pusher) {
	list.Remove(func(q pusher.Pusher) bool { return q.Key != p.Key && q.Canonical() == p.Key })
	list.Set(p)
}

// renewed returns p, set at the given time, as the successor of the stored pusher held,
// if any. A set that only switches a pusher on or off keeps its device. A pusher of the same push
// subscription stays active.
func renewed(held, p pusher.Pusher, at int64) pusher.Pusher {
	p.SetAt, p.Activated = max(at, held.SetAt+1), held.Activated && p.IsSameSubscription(held)
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

// checkLoggedIn removes a pusher that was just set if its device was logged out during
// the request. A logout ends the session first and then removes the pushers of its device:
// a pusher that is set after that removal finds the session ended here.
//
// The caller does not ask for a pusher that replaces one of the same session: the logout,
// or the request that set the replaced one, removes both alike.
func (s *setting) checkLoggedIn(ctx context.Context) error {
	session := sessionOf(s.user, s.p)
	loggedIn, err := isLoggedIn(ctx, s.accounts, session.User, session.Device)
	if err != nil || loggedIn {
		return err
	}
	err = s.removeLoggedOut(ctx, s.user, func(p pusher.Pusher) bool { return p.Key == s.p.Key && p.Device == s.p.Device })
	return cmp.Or(err, error(module.ErrLoggedOut))
}

func (s *pusherService) Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	key = key.Canonical()
	_, err := s.remove(ctx, user, func(p pusher.Pusher) bool { return p.Canonical() == key })
	return err
}

// removeLoggedOut removes matching pushers, whose devices are logged out.
func (s *pusherService) removeLoggedOut(ctx context.Context, user mxid.UserID, match func(pusher.Pusher) bool) error {
	removed, err := s.remove(ctx, user, match)
	s.pushkeys.report(observe.PusherLoggedOut, user, removed...)
	return err
}

// remove removes a user's matching pushers. The entries of their pushkeys then no longer name
// the user. An error of an entry is left out: a device that is logged out gets no
// notifications even while the master of a pushkey is away.
func (s *pusherService) remove(ctx context.Context, user mxid.UserID, match func(pusher.Pusher) bool) ([]pusher.Pusher, error) {
	removed, err := s.drop(ctx, user, match)
	if err != nil {
		return nil, err
	}
	for _, p := range removed {
		_ = s.pushkeys.leave(retry.LeaveSilent(ctx), user, p)
	}
	return removed, nil
}

// drop removes a user's stored pushers, and leaves the entries of their pushkeys as they are.
func (s *pusherService) drop(ctx context.Context, user mxid.UserID, match func(pusher.Pusher) bool) (removed []pusher.Pusher, err error) {
	err = s.store.Update(ctx, user, func(list *pusher.List) error {
		removed = list.Remove(match)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}

func (s *pusherService) removeDevices(ctx context.Context, user mxid.UserID, devices []string) error {
	return s.removeLoggedOut(ctx, user, func(p pusher.Pusher) bool {
		return !p.Kind.IsAddress() && p.Device != "" && slices.Contains(devices, p.Device)
	})
}

func (s *pusherService) keepOnlyDevice(ctx context.Context, user mxid.UserID, device string) error {
	return s.removeLoggedOut(ctx, user, func(p pusher.Pusher) bool {
		return !p.Kind.IsAddress() && (p.Device == "" || p.Device != device)
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
		return p.Kind.IsAddress() || p.Device == "" || slices.Contains(live, p.Device)
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
	all := s.store.LoadMany(retry.LeaveSilent(ctx), users)
	s.pushkeys.judge(ctx, all)
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

// forget leaves the entries first, so that a repetition finds the remaining ones.
func (s *pusherService) forget(ctx context.Context, user mxid.UserID) error {
	for {
		list, unreadable := s.store.Load(ctx, user)
		if unreadable != nil && !isUnreadable(unreadable) {
			return unreadable
		}
		for _, p := range list.All() {
			if err := s.pushkeys.forget(ctx, user, p.Digest()); err != nil && !isUnreadable(err) {
				return err
			}
		}
		if list.Len() == 0 || unreadable != nil {
			return s.store.Delete(ctx, user)
		}
		if _, err := s.drop(ctx, user, func(p pusher.Pusher) bool { return isOneOf(list.All(), p) }); err != nil {
			return err
		}
	}
}

// isOneOf reports whether a pusher is one of those that were read, and not set again with
// another number.
func isOneOf(read []pusher.Pusher, p pusher.Pusher) bool {
	return slices.ContainsFunc(read, func(q pusher.Pusher) bool { return q.Key == p.Key && p.Claim <= q.Claim })
}
