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
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
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
	targets []*channel.Target // of each recipient
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
	h.meta.Event, h.meta.Room, h.meta.Trace = ev.ID, ev.Room, d.observer.Traceparent(ctx)
	h.meta.Position, h.meta.Thread = ev.Position, ev.Thread
	if ev.RingsFor > 0 {
		h.meta.RingsUntil = h.meta.Added + ev.RingsFor.Milliseconds()
	}
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
		if target, ok := h.d.channels.Read(user, p); ok && !target.Inactive {
			isIDOnly = isIDOnly && target.IsIDOnly
			a.addTarget(target, h.d.channels.Delay(target.Kind))
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
	a.Notification.ID, a.Notification.Meta, a.Urgent = h.id, h.text, h.ev.RingsFor > 0
	return a
}

func (d *Delivery) newAddition(user mxid.UserID, m content.Meta) *addition {
	return &addition{Addition: module.Addition{User: user, Lease: lease, MaxUserBytes: d.cfg.MaxUserBytes}, meta: m}
}

func (a *addition) addTarget(target *channel.Target, delay time.Duration) {
	a.targets = append(a.targets, target)
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
			if target, ok := d.channels.Read(user, p); ok && !target.NoCounts && !target.Inactive {
				a.addTarget(target, max(d.cfg.BadgeDelay, time.Millisecond))
			}
		}
		return a
	})
}

// Invite sends an inactive pusher what activates it: whatever waits for it is sent as its activation.
func (d *Delivery) Invite(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	m, id := newMeta(d.clock(), d.cfg.MaxAge), rand.Text()[:8]
	return d.add(ctx, []mxid.UserID{user}, func(user mxid.UserID, list pusher.List) *addition {
		a := d.newAddition(user, m)
		a.Notification = content.Counts(id, m)
		if p, found := list.Pusher(key); found {
			if target, ok := d.channels.Read(user, p); ok && target.Inactive {
				a.addTarget(target, 0)
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
		d.mayClaim(addition)
		additions[i] = addition.Addition
	}
	claimedAt, unconfirmed := time.Now(), 0
	for i, result := range d.queue.Append(ctx, additions) {
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
			continue
		}
		hastened = hastened || result.Value.Hastened
		d.sendClaimed(all[i], result.Value, claimedAt, readAt)
		cutter{d}.cutIfLong(ctx, all[i].User, result.Value)
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

// mayClaim says which pushers the queue may claim. Only for those it claims, this host takes
// turns: the others wait for their next try.
func (d *Delivery) mayClaim(a *addition) {
	if d.isStopping() {
		return
	}
	a.MaxClaims = d.gates.room(a.User)
	for i := range a.Pushers {
		r := &a.Pushers[i]
		r.Claim = r.Delay == 0 && a.targets[i].IsSent() && d.gates.mayClaim(r.Gate)
	}
}

// sendClaimed sends for the claimed pushers.
func (d *Delivery) sendClaimed(a *addition, added module.Appended, claimedAt, readAt time.Time) {
	claims := 0
	for i, claim := range added.Claims {
		if claim == nil {
			continue
		}
		claims++
		s := d.newSending(claim, claimedAt)
		first := a.Notification
		first.Number = claim.Number
		s.target, s.readAt = a.targets[i], readAt
		s.known, s.end, s.meta, s.metaOf = []module.Notification{first}, added.End, a.meta, first.Number
		d.beginInTurn(s)
	}
	if claims == a.MaxClaims && claims < len(a.Pushers) { // the user may have more that are due
		d.gates.expectMore()
	}
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
