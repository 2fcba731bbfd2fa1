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
)

var _ module.PusherService = (*pusherService)(nil)

type pusherService struct {
	store    module.PusherStore
	pushkeys pushkeys
	policy   pusher.Policy
	accounts module.Accounts
}

// List reads the pushers again after their entries if these have changed since: if the pushers
// have not changed, the result is what was visible at one moment.
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
	if err := s.policy.Check(p); err != nil {
		return err
	}
	p.Key = p.Canonical()
	if p.Kind.IsAddress() {
		if others == pusher.RemoveOthers { // the address may belong to several users
			others = pusher.KeepOthers
		}
		if err := s.confirmAddress(ctx, user, p); err != nil {
			return err
		}
	}
	set := setting{s, user, p, others, noClaim}
	if done, err := set.begin(ctx); done || err != nil {
		return err
	}
	number, err := s.pushkeys.claim(ctx, user, p.Key, others, s.policy)
	if err == nil {
		err = set.put(ctx, number)
	}
	if err != nil {
		return err
	}
	return set.finish(ctx, number)
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
// of the user's pushers, and the process may die between any two: the entry decides who
// holds the pushkey, then the pusher is stored with the number of the claim, then the entry
// is read again, since other requests may have changed it meanwhile.
type setting struct {
	*pusherService
	user   mxid.UserID
	p      pusher.Pusher
	others pusher.Others
	hidden int64 // the claim of a stored pusher that is not visible, or noClaim
}

const noClaim = -1

// begin ends a set that needs no new claim, and refuses a pusher over a limit before
// anything is written. Storing checks the limits of the user's pushers again.
func (s *setting) begin(ctx context.Context) (done bool, err error) {
	list, entry, err := s.load(ctx)
	if err != nil {
		return false, err
	}
	held, found := list.Pusher(s.p.Key)
	isShown := found && entry.Shows(s.user, held.Claim)
	if found && !isShown {
		s.hidden = held.Claim
	}
	switch {
	case s.others == pusher.Imported && isShown:
		return true, nil
	case entry.Keeps(s.user, s.others) && s.others != pusher.Imported && held.Claim == entry.Number(s.user):
		if done, err := s.renew(ctx, held.Claim); done || err != nil {
			return done, err
		}
	}
	before, p := list.Size(), s.p
	p.SetAt = s.pushkeys.now().UnixMicro()
	p.Claim = p.SetAt // counts in the pusher's size; the claim has as many digits
	list.Set(p)
	return false, s.policy.CheckGrowth(before, list.Size())
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

// renew replaces the stored pusher with the claim of the holder and keeps the claim. Done
// is false if another request has changed the pusher.
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
	return true, s.checkLoggedIn(ctx, claim)
}

// finish reads the entry again after the pusher was stored with the number of a claim. If
// another user has taken the pushkey meanwhile, the pusher goes again. A later claim of the
// user, or a removal, leaves nothing to do: its request finds the pusher.
func (s *setting) finish(ctx context.Context, number int64) error {
	for {
		entry, err := s.pushkeys.Pushkeys.Load(ctx, s.p.Digest())
		if err != nil {
			return err
		}
		if entry.Number(s.user) == 0 && number < entry.Taken {
			_, err := s.drop(ctx, s.user, func(p pusher.Pusher) bool { return p.Key == s.p.Key && p.Claim <= number })
			return err
		}
		if entry.Knows(s.user) {
			return s.checkLoggedIn(ctx, number)
		}
		// The entry was lost, or a removal has ended.
		again, err := s.pushkeys.claim(ctx, s.user, s.p.Key, s.others, s.policy)
		if err != nil {
			return err
		}
		stays, err := s.renumber(ctx, number, again)
		if err != nil {
			return err
		}
		if number = again; !stays {
			return cmp.Or(s.releaseWithout(ctx, number), s.checkLoggedIn(ctx, number))
		}
	}
}

// renumber gives the stored pusher the number of another claim, unless it is gone or was
// set again.
func (s *setting) renumber(ctx context.Context, number, next int64) (stays bool, err error) {
	err = s.store.Update(ctx, s.user, func(list *pusher.List) error {
		held, found := list.Pusher(s.p.Key)
		if stays = found && held.Claim == number; stays {
			held.Claim = next
			list.Set(held)
		}
		return nil
	})
	return stays, err
}

// put stores the pusher with the number of its claim. A pusher with a later claim of the
// user stays: that request counts as the later one. So a set takes effect once.
func (s *setting) put(ctx context.Context, number int64) error {
	at := s.pushkeys.now().UnixMicro()
	return s.store.Update(ctx, s.user, s.withinLimits(func(list *pusher.List) {
		held, found := list.Pusher(s.p.Key)
		if found && held.Claim == s.hidden { // a new pusher for the user
			list.Delete(s.p.Key)
			held, found = pusher.Pusher{SetAt: held.SetAt}, false
		}
		if found && held.Claim > number && s.others != pusher.Imported {
			return
		}
		next := s.p
		next.Claim = number
		switch {
		case s.others != pusher.Imported:
			next = renewed(held, next, at)
		case found: // newer than the import
			next = held
			next.Claim = max(held.Claim, number)
		case next.SetAt <= 0 || next.SetAt > at:
			next.SetAt = at
		}
		list.Set(next)
	}))
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

// checkLoggedIn removes a pusher that was just set if its device was logged out during
// the request. A logout ends the session first and then removes the pushers of its device:
// a pusher that is set after that removal finds the session ended here.
//
// The caller does not ask for a pusher that replaces one of the same session: the logout,
// or the request that set the replaced one, removes both alike.
func (s *setting) checkLoggedIn(ctx context.Context, claim int64) error {
	session := sessionOf(s.user, s.p)
	loggedIn, err := isLoggedIn(ctx, s.accounts, session.User, session.Device)
	if err != nil || loggedIn {
		return err
	}
	removed, err := s.remove(ctx, s.user, func(p pusher.Pusher) bool { return p.Key == s.p.Key && p.Device == s.p.Device })
	if err != nil {
		return err
	}
	s.pushkeys.report(observe.PusherLoggedOut, s.user, removed...)
	if len(removed) == 0 { // the logout may have removed the pusher before it had its claim
		err = s.releaseWithout(ctx, claim)
	}
	return cmp.Or(err, error(module.ErrLoggedOut))
}

// releaseWithout releases a claim that has no pusher.
func (s *setting) releaseWithout(ctx context.Context, claim int64) error {
	list, err := s.store.Load(ctx, s.user)
	if _, found := list.Pusher(s.p.Key); found || err != nil {
		return err
	}
	p := s.p
	p.Claim = claim
	return s.pushkeys.releaseAndForget(ctx, s.user, p)
}

func (s *pusherService) Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	_, err := s.remove(ctx, user, func(p pusher.Pusher) bool { return p.Canonical() == key.Canonical() })
	return err
}

// removeLoggedOut removes matching pushers, whose devices are logged out.
func (s *pusherService) removeLoggedOut(ctx context.Context, user mxid.UserID, match func(pusher.Pusher) bool) error {
	removed, err := s.remove(ctx, user, match)
	s.pushkeys.report(observe.PusherLoggedOut, user, removed...)
	return err
}

// remove removes a user's matching pushers. It first makes the user a loser of their
// pushkeys, then removes the stored pushers, then removes the loser from the entries: an entry
// may know a user without a pusher, but never lack a user with one. A set of the same pusher in
// between is brought in line with the entries at the end.
//
// Errors of entries are ignored. A device that is logged out gets no notifications even while
// the master of a pushkey is away; the entry then keeps a holder without a pusher.
func (s *pusherService) remove(ctx context.Context, user mxid.UserID, match func(pusher.Pusher) bool) ([]pusher.Pusher, error) {
	list, err := s.store.Load(ctx, user)
	if err != nil {
		return nil, err
	}
	going := list.Remove(match)
	if len(going) == 0 {
		return nil, nil
	}
	losers := make([][]pusher.Holder, len(going))
	for i, p := range going {
		losers[i], _ = s.pushkeys.release(ctx, user, p, releasing(user, p))
	}
	var stay []pusher.Pusher // set again with the same claim by another device
	removed, err := s.drop(ctx, user, func(p pusher.Pusher) bool {
		if !match(p) {
			stay = append(stay, p)
			return false
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for i, p := range going {
		_ = s.pushkeys.forget(ctx, p.Digest(), losers[i])
	}
	for _, p := range removed {
		if !hasClaim(going, p) { // set again meanwhile
			_ = s.pushkeys.releaseAndForget(ctx, user, p)
		}
	}
	for _, p := range stay {
		if hasClaim(going, p) {
			s.pushkeys.restore(ctx, user, p)
		}
	}
	return removed, nil
}

func releasing(user mxid.UserID, p pusher.Pusher) func(*pusher.Entry) {
	return func(e *pusher.Entry) { e.Release(pusher.Holder{User: user, Number: p.Claim}) }
}

// hasClaim reports whether one of the pushers has the key and the claim of another.
func hasClaim(all []pusher.Pusher, p pusher.Pusher) bool {
	return slices.ContainsFunc(all, func(q pusher.Pusher) bool { return q.Key == p.Key && q.Claim == p.Claim })
}

// isOneOf reports whether a pusher is one of those that were read, and not set again with
// another claim.
func isOneOf(read []pusher.Pusher, p pusher.Pusher) bool {
	return slices.ContainsFunc(read, func(q pusher.Pusher) bool { return q.Key == p.Key && p.Claim <= q.Claim })
}

// drop removes a user's stored pushers, whatever the entries of their pushkeys are.
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
	all := s.store.LoadMany(ctx, users)
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
		if err := s.leave(ctx, user, list.All()); err != nil {
			return err
		}
		if list.Len() == 0 || unreadable != nil {
			return s.store.Delete(ctx, user)
		}
		if _, err := s.drop(ctx, user, func(p pusher.Pusher) bool { return isOneOf(list.All(), p) }); err != nil {
			return err
		}
	}
}

// leave removes the user from the entries of pushers, unless they are unreadable.
func (s *pusherService) leave(ctx context.Context, user mxid.UserID, pushers []pusher.Pusher) error {
	for _, p := range pushers {
		left, err := s.pushkeys.release(ctx, user, p, func(e *pusher.Entry) { e.Remove(user) })
		if err == nil {
			err = s.pushkeys.forget(ctx, p.Digest(), left)
		}
		if err != nil && !isUnreadable(err) {
			return err
		}
	}
	return nil
}
