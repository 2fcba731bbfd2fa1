// Package handover hands new events over; its API may change at any time. It makes the calls
// of a [module.Notifier] and a [module.UnreadService] for an event, in their order, and
// returns the rest.
package handover

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

var _ module.EventService = (*Service)(nil)

// Service is a [module.EventService]. It is safe for concurrent use, and stores nothing.
type Service struct {
	notifier module.Notifier
	unread   module.UnreadService
}

// New returns a service. With a nil UnreadService it counts nothing.
func New(notifier module.Notifier, unread module.UnreadService) *Service {
	return &Service{notifier, unread}
}

// patience is how long an event waits for its counts before syncs show it and phones get it.
// Counts that come later are stored all the same.
const patience = time.Second

// HandOver implements [module.EventService].
func (s *Service) HandOver(
	ctx context.Context, e module.NewEvent, rest module.Rest, shown func(users []mxid.UserID),
) (module.Rest, error) {
	before, err := readRest(rest)
	if err != nil {
		return rest, err
	}
	h := s.newHandover(e, before)
	if rest != "" || shown == nil {
		shown = func([]mxid.UserID) {}
	}
	h.run(ctx, e, shown)
	return h.left.rest(), h.err()
}

// handover is an event that is being handed over. Each step writes its own elements of left
// and errs.
type handover struct {
	*Service
	event   module.Event
	room    string
	members []match.Member // to decide for
	todo    users
	left    users
	errs    [steps + 1]error // of the steps, and of Decide

	decisions module.Decisions
}

// newHandover returns a handover. Before is the rest of an earlier call, nil for the whole event.
func (s *Service) newHandover(e module.NewEvent, before map[mxid.UserID]stepSet) *handover {
	h := &handover{Service: s, event: e.Event, room: roomOf(e.JSON)}
	if h.event.Thread == "" && h.event.Position > 0 {
		h.event.Thread = module.MainThread
	}
	for _, m := range e.Members {
		if m.User != e.Sender && h.add(before, m.User, count, notify) {
			h.members = append(h.members, m)
		}
	}
	if e.Sender != "" {
		h.add(before, e.Sender, own, badge)
	}
	if e.Changed != "" {
		h.add(before, e.Changed, read, badge)
	}
	return h
}

// add adds a user to the steps that are left, and reports whether any is. An invalid id must
// not cost the other users the event.
func (h *handover) add(before map[mxid.UserID]stepSet, user mxid.UserID, all ...step) (added bool) {
	if err := user.Validate(); err != nil {
		h.errs[steps] = fault.Wrap(fault.InvalidParam, "The user id is not valid.", err)
		return false
	}
	for _, one := range all {
		isPossible := h.unread != nil || one == notify || one == badge
		if isPossible && (before == nil || before[user].has(one)) {
			h.todo[one], added = append(h.todo[one], user), true
		}
	}
	return added
}

// roomOf returns the room_id of an event.
func roomOf(event string) (room string) {
	if !strictjson.Valid(event) {
		return ""
	}
	w := strictjson.Walk(event)
	if w.Next() != '{' {
		return ""
	}
	for name := range w.Object() {
		if name == "room_id" && w.Next() == '"' {
			room = w.String()
		}
	}
	return room
}

// run makes the calls, and returns when they have ended. The context of a call has no shorter
// deadline: a count that is stored after the patience needs no repetition.
func (h *handover) run(ctx context.Context, e module.NewEvent, shown func(users []mxid.UserID)) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	decided, counted, isRead := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		h.decide(ctx)
		close(decided)
		h.count(ctx)
		close(counted)
		h.read(ctx)
		close(isRead)
		h.updateBadges(ctx)
	})
	all.Go(func() {
		<-decided
		await(waiting, counted)
		h.notify(ctx)
	})
	others, changed := seeing(e)
	await(waiting, counted)
	show(shown, others)
	await(waiting, isRead)
	show(shown, changed)
	all.Wait()
}

func await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func show(shown func(users []mxid.UserID), users []mxid.UserID) {
	if len(users) > 0 {
		shown(users)
	}
}

// seeing returns the users who see an event, in order. The last ones wait for the read mark.
func seeing(e module.NewEvent) (others, changed []mxid.UserID) {
	others = append(slices.Clone(e.Others), e.Sender)
	for _, m := range e.Members {
		others = append(others, m.User)
	}
	slices.Sort(others)
	others = slices.DeleteFunc(slices.Compact(others), func(user mxid.UserID) bool { return user == "" || user == e.Changed })
	if e.Changed != "" {
		changed = []mxid.UserID{e.Changed}
	}
	return others, changed
}

func (h *handover) decide(ctx context.Context) {
	if len(h.members) == 0 {
		return
	}
	decisions, err := h.notifier.Decide(ctx, h.event, h.members)
	h.decisions = slices.DeleteFunc(decisions, func(d module.Decision) bool { return !d.Result.Notify() })
	h.errs[steps] = errors.Join(h.errs[steps], err)
	h.left[count], h.left[notify] = leftOf(h.todo[count], err), leftOf(h.todo[notify], err)
}

func (h *handover) count(ctx context.Context) {
	decisions, at := h.decisions.Of(h.todo[count]), module.Place{Room: h.room, Position: h.event.Position, Thread: h.event.Thread}
	if len(decisions)+len(h.todo[own]) == 0 {
		return
	}
	if len(h.todo[own]) > 0 {
		at.Sender = h.todo[own][0]
	}
	h.errs[count] = h.unread.Add(ctx, at, decisions)
	h.left[count] = append(h.left[count], leftOf(usersOf(decisions), h.errs[count])...)
	h.left[own] = leftOf(h.todo[own], h.errs[count])
}

func (h *handover) notify(ctx context.Context) {
	decisions := h.decisions.Of(h.todo[notify])
	if len(decisions) == 0 {
		return
	}
	h.errs[notify] = h.notifier.Notify(ctx, h.event, decisions)
	h.left[notify] = append(h.left[notify], leftOf(usersOf(decisions), h.errs[notify])...)
}

// read marks the room as read for the user whose membership has changed. If the user's own
// event could not be counted, the storage is away.
func (h *handover) read(ctx context.Context) {
	for _, user := range h.todo[read] {
		if slices.Contains(h.left[own], user) {
			h.left[read] = []mxid.UserID{user}
			continue
		}
		err := h.unread.Read(ctx, user, h.room, module.AllThreads, h.event.Position)
		h.errs[read] = err
		if fault.KindOf(err) != fault.Database { // an unreadable record stays so
			h.left[read] = leftOf([]mxid.UserID{user}, err)
		}
	}
}

// updateBadges updates the badges of users whose read marks are stored. The other ones are
// left.
func (h *handover) updateBadges(ctx context.Context) {
	var users []mxid.UserID
	for _, user := range h.todo[badge] {
		if slices.Contains(h.left[own], user) || slices.Contains(h.left[read], user) {
			h.left[badge] = append(h.left[badge], user)
		} else {
			users = append(users, user)
		}
	}
	if len(users) == 0 {
		return
	}
	h.errs[badge] = h.notifier.UpdateBadges(ctx, users...)
	h.left[badge] = append(h.left[badge], leftOf(users, h.errs[badge])...)
}

// err returns the error of the call, for the log.
func (h *handover) err() error {
	left := h.left.all()
	if len(left) == 0 {
		return errors.Join(h.errs[:]...)
	}
	var reasons []error
	for _, err := range h.errs {
		if call := (*module.LeftError)(nil); errors.As(err, &call) {
			reasons = append(reasons, call.Reasons...)
		} else if err != nil {
			reasons = append(reasons, module.Unavailable(err))
		}
	}
	return &module.LeftError{Users: left, Reasons: reasons}
}

// leftOf returns for which of the users of a call it has to be repeated.
func leftOf(users []mxid.UserID, err error) []mxid.UserID {
	some, all := module.Left(err)
	if all {
		return users
	}
	return both(users, some)
}

func usersOf(decisions module.Decisions) []mxid.UserID {
	users := make([]mxid.UserID, len(decisions))
	for i, d := range decisions {
		users[i] = d.User
	}
	return users
}

// both returns the users that are in both lists. Others are in order.
func both(users, others []mxid.UserID) (some []mxid.UserID) {
	for _, user := range users {
		if _, found := slices.BinarySearch(others, user); found {
			some = append(some, user)
		}
	}
	return some
}
