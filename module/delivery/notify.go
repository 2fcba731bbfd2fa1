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
	"github.com/pushfx/pushfx/module/internal/partition"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/retry"
)

// A call adds to the logs of chunkUsers users at once, and has chunksAtOnce such chunks in
// flight at each partition of the queue: another call waits for no more.
const (
	chunkUsers   = 64
	chunksAtOnce = 2
)

// maxRoomName bounds a recipient's own name of the room, in bytes. A recipient with a
// longer one gets the room name of the event.
const maxRoomName = 1 << 10

// addition is a notification for a user, and what sending it at once needs.
type addition struct {
	module.AppendRequest
	meta    content.Meta
	targets []*channel.Target // of each recipient
}

// fanOut is a call that adds notifications to the logs of users: of an event, or counts.
type fanOut struct {
	*Delivery
	ev         *content.Event // nil for counts
	meta       content.Meta
	id, text   string // of its notifications; text is the stored form of meta
	recipients map[mxid.UserID]module.Decision
	invited    pusher.Key // of an inactive pusher; zero but for [Delivery.Invite]
	left       partition.Left
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
	a := d.newFanOut(content.EventID(ev.ID), ev.Lifetime)
	a.ev, a.recipients = ev, map[mxid.UserID]module.Decision{}
	a.meta.Event, a.meta.Room, a.meta.Trace = ev.ID, ev.Room, d.observer.Traceparent(ctx)
	a.meta.Position, a.meta.Thread = ev.Position, ev.Thread
	if ev.RingsFor > 0 {
		a.meta.RingsUntil = a.meta.Added + ev.RingsFor.Milliseconds()
	}
	a.text = a.meta.Text()
	var users []mxid.UserID
	for _, decision := range decisions {
		if decision.Result.Notify() {
			users = append(users, decision.User)
			a.recipients[decision.User] = decision
		}
	}
	return a.add(ctx, users)
}

func (d *Delivery) newFanOut(id string, lifetime time.Duration) *fanOut {
	added := d.clock()
	return &fanOut{Delivery: d, id: id, meta: content.Meta{Added: added.UnixMilli(), Expires: added.Add(lifetime).UnixMilli()}}
}

// additionFor returns what to add for a user. It has no pushers for a user who gets nothing.
func (a *fanOut) additionFor(user mxid.UserID, list pusher.List) *addition {
	if a.ev == nil {
		return a.countsFor(user, list)
	}
	one, isIDOnly := a.newAddition(user), true
	for _, p := range list.All() {
		if target, ok := a.channels.Read(user, p); ok && !target.Inactive {
			isIDOnly = isIDOnly && target.IsIDOnly
			one.addTarget(target, a.channels.Delay(target.Kind))
		}
	}
	if len(one.targets) == 0 {
		return one
	}
	decision := a.recipients[user]
	to := content.To{User: user, RoomName: decision.RoomName, Outcome: a.ev.Outcome(decision.Result), IDOnly: isIDOnly}
	if len(to.RoomName) > maxRoomName {
		to.RoomName = ""
	}
	one.Notification = a.ev.Notification(to, a.limits)
	one.Notification.ID, one.Notification.Meta, one.Urgent = a.id, a.text, a.ev.RingsFor > 0
	return one
}

func (a *fanOut) countsFor(user mxid.UserID, list pusher.List) *addition {
	one := a.newAddition(user)
	one.Notification = content.Counts(a.id, a.meta)
	for _, p := range list.All() {
		target, ok := a.channels.Read(user, p)
		switch {
		case !ok:
		case target.Inactive && p.Key == a.invited:
			one.addTarget(target, 0)
		case !target.Inactive && !target.NoCounts && a.invited == pusher.Key{}:
			one.addTarget(target, max(a.cfg.BadgeDelay, time.Millisecond))
		}
	}
	return one
}

func (a *fanOut) newAddition(user mxid.UserID) *addition {
	return &addition{AppendRequest: module.AppendRequest{User: user, Lease: lease, MaxUserBytes: a.cfg.MaxUserBytes}, meta: a.meta}
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
	return d.newFanOut(rand.Text()[:8], d.cfg.MaxAge).add(ctx, slices.Clone(users))
}

// Invite sends an inactive pusher what activates it: whatever waits for it is sent as its activation.
func (d *Delivery) Invite(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	a := d.newFanOut(rand.Text()[:8], d.cfg.MaxAge)
	a.invited = key
	return a.add(ctx, []mxid.UserID{user})
}

// add adds a notification for each user with pushers, in the order of the user ids, and
// sends what it has claimed. Its error is a [module.LeftError].
func (a *fanOut) add(ctx context.Context, users []mxid.UserID) error {
	slices.SortFunc(users, func(a, b mxid.UserID) int { return strings.Compare(string(a), string(b)) })
	users = slices.Compact(users)
	if len(users) == 0 {
		return nil
	}
	a.left.Add(module.Unavailable(retry.ErrSilent), partition.Do(ctx, a.queue.Partition, users, partition.Size{Chunk: chunkUsers, AtOnce: chunksAtOnce}, a.chunk)...)
	return a.left.Err()
}

var errNoResult = errors.New("delivery: no result")

// chunk adds for some users of a partition. It reports whether the partition has answered for any of
// them.
func (a *fanOut) chunk(ctx context.Context, users []mxid.UserID) (answered bool) {
	readAt := time.Now()
	var all []*addition
	for i, list := range a.pushersOf(ctx, users) {
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
func (a *fanOut) leavesOut(user mxid.UserID, err error) bool {
	isUnreadable := fault.KindOf(err) == fault.Database
	if isUnreadable {
		a.failures.add("a user gets no notifications", fmt.Errorf("%s: %w", user, err))
	}
	return isUnreadable
}

// append adds notifications to the queue, and sends what it has claimed. It reports whether
// the queue has answered.
func (a *fanOut) append(ctx context.Context, all []*addition, readAt time.Time) (answered bool) {
	d := a.Delivery
	wasIdle, hastened := d.isStopping(), false
	requests := make([]module.AppendRequest, len(all))
	for i, addition := range all {
		d.mayClaim(addition)
		requests[i] = addition.AppendRequest
	}
	claimedAt, unconfirmed := time.Now(), 0
	for i, result := range d.queue.Append(ctx, requests) {
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
		r.Claim = r.Delay == 0 && a.targets[i].IsSent() && d.gates.mayClaim(a.User, r.Gate)
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
