package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/internal/parts"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// A call adds to the logs of chunkUsers users at once, and has chunksAtOnce such chunks in
// flight at each part of the queue: another call waits for no more.
const (
	chunkUsers   = 64
	chunksAtOnce = 2
)

// maxRoomName bounds a recipient's own name of the room, in bytes. A recipient with a
// longer one gets the room name of the event.
const maxRoomName = 1 << 10

// addition is a notification for a user, and what sending it at once needs.
type addition struct {
	module.Addition
	meta    content.Meta
	targets []*content.Target // of each recipient
	turns   []*turns.Turn     // of each recipient, nil for none
}

// handover is an event that is being added to logs.
type handover struct {
	d          *Delivery
	ev         *content.Event
	meta       content.Meta
	id, text   string // of its notifications; text is the stored form of meta
	recipients map[mxid.UserID]module.Decision
}

// Notify implements [module.Notifier].
func (d *Delivery) Notify(ctx context.Context, e module.Event, decisions module.Decisions) (err error) {
	ctx, end := d.observer.Begin(ctx, notifyCall)
	defer func() {
		for _, reason := range reasonsOf(err) {
			d.observer.Count(observe.HandoverFailed, string(reason), 1)
		}
		end(observe.Outcome{Err: err})
	}()
	ev, of, err := content.ReadEvent(e, d.limits, time.Now())
	if err != nil || !of {
		return err
	}
	h := &handover{d: d, ev: ev, id: content.EventID(ev.ID), meta: newMeta(d.clock(), ev.Lifetime), recipients: map[mxid.UserID]module.Decision{}}
	h.meta.Event, h.meta.Room, h.meta.Call, h.meta.Trace = ev.ID, ev.Room, ev.IsCall(), d.observer.Traceparent(ctx)
	h.meta.Position, h.meta.Thread = ev.Position, ev.Thread
	h.text = h.meta.Text()
	var users []mxid.UserID
	for _, decision := range decisions {
		if decision.Result.Notify() {
			users = append(users, decision.User)
			h.recipients[decision.User] = decision
		}
	}
	return d.add(ctx, users, h.additionFor)
}

func newMeta(added time.Time, lifetime time.Duration) content.Meta {
	return content.Meta{Added: added.UnixMilli(), Expires: added.Add(lifetime).UnixMilli()}
}

func (h *handover) additionFor(user mxid.UserID, list pusher.List) *addition {
	a, isIDOnly := h.d.newAddition(user, h.meta), true
	for _, p := range list.All() {
		if target, ok := content.ReadTarget(user, p, h.d.limits); ok {
			isIDOnly = isIDOnly && target.IsIDOnly()
			delay := time.Duration(0)
			if target.IsMail {
				delay = h.d.cfg.Mail.Delay
			}
			a.addTarget(target, delay)
		}
	}
	if len(a.targets) == 0 {
		return a
	}
	decision := h.recipients[user]
	to := content.To{User: user, RoomName: decision.RoomName, Outcome: h.ev.Outcome(decision.Result), IDOnly: isIDOnly}
	if len(to.RoomName) > maxRoomName {
		to.RoomName = ""
	}
	a.Notification = h.ev.Notification(to, h.d.limits)
	a.Notification.ID, a.Notification.Meta, a.Urgent = h.id, h.text, h.meta.Call
	return a
}

func (d *Delivery) newAddition(user mxid.UserID, m content.Meta) *addition {
	return &addition{Addition: module.Addition{User: user, Lease: lease, MaxUserBytes: d.cfg.MaxUserBytes}, meta: m}
}

func (a *addition) addTarget(target *content.Target, delay time.Duration) {
	a.targets, a.turns = append(a.targets, target), append(a.turns, nil)
	a.Pushers = append(a.Pushers, module.Recipient{Pusher: target.ID, Gate: target.Gate(), Delay: delay, Generation: target.SetAt})
}

// UpdateBadges implements [module.Notifier]. Without [module.Unread] it does nothing.
func (d *Delivery) UpdateBadges(ctx context.Context, users ...mxid.UserID) error {
	if !d.hasUnread {
		return nil
	}
	m, id := newMeta(d.clock(), d.cfg.MaxAge), rand.Text()[:8]
	return d.add(ctx, slices.Clone(users), func(user mxid.UserID, list pusher.List) *addition {
		a := d.newAddition(user, m)
		a.Notification = content.Counts(id, m)
		for _, p := range list.All() {
			if target, ok := content.ReadTarget(user, p, d.limits); ok && !target.NoCounts {
				a.addTarget(target, max(d.cfg.BadgeDelay, time.Millisecond))
			}
		}
		return a
	})
}

// adding is a call that adds notifications to the logs of users.
type adding struct {
	d           *Delivery
	additionFor func(mxid.UserID, pusher.List) *addition
	left        parts.Left
}

// add adds a notification for each user with pushers, in the order of the user ids, and
// sends what it has claimed. Its error is a [module.LeftError].
func (d *Delivery) add(ctx context.Context, users []mxid.UserID, additionFor func(mxid.UserID, pusher.List) *addition) error {
	slices.SortFunc(users, func(a, b mxid.UserID) int { return strings.Compare(string(a), string(b)) })
	users = slices.Compact(users)
	if len(users) == 0 {
		return nil
	}
	a := &adding{d: d, additionFor: additionFor}
	a.left.Add(module.Unavailable(errSilent), d.parts.Do(ctx, users, parts.Size{Chunk: chunkUsers, AtOnce: chunksAtOnce}, a.chunk)...)
	return a.left.Err()
}

var (
	errNoResult = errors.New("delivery: no result")
	errSilent   = errors.New("delivery: a part of the storage does not answer")
)

// chunk adds for some users of a part. It reports whether the part has answered for any of
// them.
func (a *adding) chunk(ctx context.Context, users []mxid.UserID) (answered bool) {
	readAt := time.Now()
	var all []*addition
	for i, list := range a.d.pushersOf(ctx, users) {
		switch {
		case list.Err == nil:
			answered = true
			if addition := a.additionFor(users[i], list.Value); len(addition.Pushers) > 0 {
				all = append(all, addition)
			}
		case a.leavesOut(users[i], list.Err):
			answered = true
		default:
			a.left.Add(list.Err, users[i])
		}
	}
	if len(all) == 0 {
		return answered
	}
	return a.append(ctx, all, readAt)
}

// leavesOut leaves out a user whose stored data cannot be read: a repetition would not help.
func (a *adding) leavesOut(user mxid.UserID, err error) bool {
	isUnreadable := fault.KindOf(err) == fault.Database
	if isUnreadable {
		a.d.failures.add("a user gets no notifications", fmt.Errorf("%s: %w", user, err))
	}
	return isUnreadable
}

// append adds notifications to the queue, and sends what it has claimed. It reports whether
// the queue has answered.
func (a *adding) append(ctx context.Context, all []*addition, readAt time.Time) (answered bool) {
	d := a.d
	wasIdle, hastened := d.isStopping(), false
	additions := make([]module.Addition, len(all))
	for i, addition := range all {
		d.admit(addition)
		additions[i] = addition.Addition
	}
	claimedAt, unconfirmed := time.Now(), 0
	results := withTurns(d.gates, all, func() []module.Result[module.Appended] { return d.queue.Append(ctx, additions) })
	for i, result := range results {
		isStored := result.Err == nil
		if errors.Is(result.Err, fault.ErrNotConfirmed) {
			isStored = true
			unconfirmed++
			d.failures.report(observe.NotificationsUnconfirmed, "add notifications", result.Err)
		}
		isLeftOut := !isStored && a.leavesOut(all[i].User, result.Err)
		answered = answered || isStored || isLeftOut
		if !isStored {
			if !isLeftOut {
				a.left.Add(result.Err, all[i].User)
			}
			all[i].withdraw(d.gates)
			continue
		}
		hastened = hastened || result.Value.Hastened
		d.sendClaimed(all[i], result.Value, claimedAt, readAt)
		d.cutIfLong(ctx, all[i].User, result.Value)
	}
	if unconfirmed > 0 {
		d.observer.Count(observe.NotificationUnconfirmed, "", unconfirmed)
	}
	// This host may have begun to look before the notifications were added.
	if wasIdle && !d.isStopping() || hastened {
		d.gates.lookNow()
	}
	return answered
}

// admit takes turns for a notification. A pusher with a turn is claimed.
func (d *Delivery) admit(a *addition) {
	for i := range a.Pushers {
		r := &a.Pushers[i]
		if r.Delay > 0 || d.isStopping() || !d.gates.mayClaim(r.Gate) {
			continue
		}
		var wait time.Duration
		if a.turns[i], wait = d.gates.admit(a.User, r.Gate, false); wait > 0 {
			d.gates.expectMore()
		}
		r.Claim = a.turns[i] != nil
	}
}

// turnsFor is how long notifications keep their turns while the queue adds them. Then others
// get the turns: the queue may not answer for seconds.
const turnsFor = 100 * time.Millisecond

// withTurns calls add. If it takes longer than turnsFor, it ends the turns meanwhile.
func withTurns(g *gates, all []*addition, add func() []module.Result[module.Appended]) []module.Result[module.Appended] {
	withdrawn := make(chan struct{})
	timer := time.AfterFunc(turnsFor, func() {
		defer close(withdrawn)
		for _, a := range all {
			a.withdraw(g)
		}
	})
	results := add()
	if !timer.Stop() {
		<-withdrawn
	}
	return results
}

// withdraw ends the turns of a notification.
func (a *addition) withdraw(g *gates) {
	for i, turn := range a.turns {
		if turn != nil {
			g.unused(turn)
			a.turns[i] = nil
		}
	}
}

// sendClaimed sends for the claimed pushers, and ends the turns of others.
func (d *Delivery) sendClaimed(a *addition, added module.Appended, claimedAt, readAt time.Time) {
	for i, claim := range added.Claims {
		if claim == nil {
			continue
		}
		s := d.newSending(claim, claimedAt)
		first := a.Notification
		first.Number = claim.Number
		s.target, s.readAt = a.targets[i], readAt
		s.known, s.end, s.meta, s.metaOf = []module.Notification{first}, added.End, a.meta, first.Number
		if !claim.Fails { // otherwise it takes its turn behind others
			s.turn, a.turns[i] = a.turns[i], nil
		}
		if !d.startOrRelease(s) {
			s.leaveTurn()
		}
	}
	a.withdraw(d.gates)
}

// startOrRelease sends for a claimed pusher. If this host is stopping, it releases the claim
// instead.
func (d *Delivery) startOrRelease(s *sending) (started bool) {
	if started = d.start(s.run); !started {
		s.release()
	}
	return started
}

// pushersOf returns the pushers of users, in their order, from the cache if they are there.
func (d *Delivery) pushersOf(ctx context.Context, users []mxid.UserID) []module.Result[pusher.List] {
	return d.audience.feed.Pushers(ctx, users, d.host.Pushers)
}
