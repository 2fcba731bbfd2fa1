package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	outboxEvery = time.Minute      // how often a host scans the outbox
	outboxAge   = 10 * time.Second // a younger row may still be handed over by the host that wrote it
)

// outbox hands each event over to the module. The event's row in the outbox stays until some host has handed it over. All
// hosts share the outbox, so an event survives the death of its host.
type outbox struct {
	users    *sessions.Store
	rooms    *rooms.Store
	notifier module.Notifier
	unread   module.UnreadService
	waker    *waker
	done     chan rooms.Row // rows to remove
}

// maxDone is the number of rows that can wait for their removal. A row beyond it stays and is handed over again, which
// has no effect.
const maxDone = 1000

func newOutbox(users *sessions.Store, store *rooms.Store, notifier module.Notifier, unread module.UnreadService, waker *waker) *outbox {
	return &outbox{users, store, notifier, unread, waker, make(chan rooms.Row, maxDone)}
}

// row is what a handover needs besides the event and the members of its room.
type row struct {
	RoomName string `json:",omitempty"`
	Sender   mxid.UserID
	User     mxid.UserID      `json:",omitempty"` // whose membership the event changes; empty: nobody's
	Is       rooms.Membership `json:",omitempty"` // the new membership
	Power    *power           `json:",omitempty"` // nil: unknown
	Left     *left            `json:",omitempty"` // nil: all of it
}

// left is what earlier handovers have left of an event: the users of each call that has not succeeded for them.
type left struct {
	Count, Notify, Show, Badges []mxid.UserID `json:",omitempty"`
	Read                        bool          `json:",omitempty"` // the read mark of a user who joined or left
}

func (l *left) isEmpty() bool {
	return len(l.Count)+len(l.Notify)+len(l.Show)+len(l.Badges) == 0 && !l.Read
}

// leftOf returns the users of a call for whom it has to be repeated.
func leftOf(users []mxid.UserID, err error) []mxid.UserID {
	if some, all := module.Left(err); !all {
		return some
	}
	return users
}

// both returns the users that are in both lists.
func both(users, others []mxid.UserID) []mxid.UserID {
	isOther := make(map[mxid.UserID]bool, len(others))
	for _, user := range others {
		isOther[user] = true
	}
	return slices.DeleteFunc(slices.Clone(users), func(user mxid.UserID) bool { return !isOther[user] })
}

// handover is an event with the users that it concerns.
type handover struct {
	rooms.Row
	row     row
	left    left
	event   module.Event
	members []mxid.UserID // the joined users, and the user whom the event invites
	others  []mxid.UserID // users that see the event without being notified
	sender  mxid.UserID
	reads   mxid.UserID // the user who joined or left by this event, and so has read the room; empty: none
	power   *power
}

// handover returns the handover of a stored event. Members are those of the room now.
func (r row) handover(at rooms.Row, e rooms.Event, members rooms.Members) handover {
	name, _, _ := strings.Cut(strings.TrimPrefix(string(r.Sender), "@"), ":")
	joined := members.Users(rooms.Joined)
	h := handover{
		Row: at, row: r, members: joined, others: []mxid.UserID{r.Sender}, sender: r.Sender, power: r.Power,
		event: module.Event{
			JSON: e.JSON, RoomName: r.RoomName, SenderName: name, Position: e.Position, Thread: e.Thread,
			Room: match.Room{MemberCount: max(1, len(joined)), Power: r.Power.fact()},
		},
	}
	switch {
	case r.User == "":
	case r.Is == rooms.Invited:
		h.others = append(h.others, r.User)
		if members[r.User] == rooms.Invited {
			h.members = append(h.members, r.User)
		}
	default:
		h.others, h.reads = append(h.others, r.User), r.User
	}
	if h.left = h.everything(); r.Left != nil {
		h.left = *r.Left
	}
	return h
}

// everything is what is left of an event that no host has handed over.
func (h handover) everything() left {
	users := append(slices.Clone(h.members), h.others...)
	slices.Sort(users)
	users = slices.Compact(users)
	changed := []mxid.UserID{h.sender} // users whose badges change without a notification
	if h.reads != "" && h.reads != h.sender {
		changed = append(changed, h.reads)
	}
	return left{Count: users, Notify: users, Show: users, Badges: changed, Read: h.reads != ""}
}

// send hands over what is left of an event. If a part of Redis is away, the users in the other parts get the event now,
// and the row stays, with the users who are left.
func (o *outbox) send(ctx context.Context, h handover) error {
	h.event.Related = relatedTo(h.event.JSON, func(id string) (rooms.Event, bool, error) { return o.rooms.Event(ctx, h.Room, id) })
	rest, err := o.handOver(ctx, h)
	if rest.isEmpty() {
		_ = o.handedOver(h.Row, nil)
		return err
	}
	h.row.Left = &rest
	text, failed := json.Marshal(h.row)
	if failed == nil && string(text) != h.Text {
		failed = o.rooms.Keep(context.WithoutCancel(ctx), h.Row, string(text))
	}
	return errors.Join(err, failed)
}

// sendAgain hands over an event that an earlier try may not have handed over, unless the event was redacted since then.
func (o *outbox) sendAgain(ctx context.Context, at rooms.Row) error {
	var r row
	if err := json.Unmarshal([]byte(at.Text), &r); err != nil {
		return o.handedOver(at, fault.Wrap(fault.InvalidParam, "Not a row.", err))
	}
	e, found, err := o.rooms.Event(ctx, at.Room, at.ID)
	if err != nil || !found || e.Redacted {
		return o.handedOver(at, err)
	}
	members, err := o.rooms.Members(ctx, at.Room)
	if err != nil {
		return err
	}
	return o.send(ctx, r.handover(at, e, members))
}

// handedOver returns err, the result of handing an event over. After success, or if another try cannot help, it passes
// the row to run for its removal.
func (o *outbox) handedOver(at rooms.Row, err error) error {
	if err == nil || module.IsPermanent(err) {
		select {
		case o.done <- at:
		default:
		}
	}
	return err
}

// countFor is how long an event waits for its unread counts before syncs show it.
const countFor = time.Second

// handOver makes the calls for an event, and returns what is left.
func (o *outbox) handOver(ctx context.Context, h handover) (rest left, err error) {
	members, unread, ignored := o.toDecide(ctx, h)
	counting, cancel := context.WithTimeout(ctx, countFor)
	defer cancel()
	decisions, undecided := o.notifier.Decide(counting, h.event, members)
	missing := slices.Concat(unread, leftOf(usersOf(members), undecided))
	counted, isRead := o.count(counting, h, decisions.Of(h.left.Count))
	var shown, notified, updated error
	var all sync.WaitGroup
	all.Go(func() { shown = o.showTo(ctx, h.Room, rooms.Event{ID: h.ID, Position: h.event.Position}, h.left.Show) })
	all.Go(func() { updated = o.notifier.UpdateBadges(ctx, h.left.Badges...) })
	if some := decisions.Of(h.left.Notify); len(some) > 0 || undecided == nil {
		notified = o.notifier.Notify(ctx, h.event, some)
	}
	all.Wait()
	return left{
		Count:  append(both(h.left.Count, missing), leftOf(h.left.Count, counted)...),
		Notify: append(both(h.left.Notify, missing), leftOf(h.left.Notify, notified)...),
		Show:   leftOf(h.left.Show, shown),
		Badges: leftOf(h.left.Badges, updated),
		Read:   isRead != nil,
	}, errors.Join(ignored, undecided, counted, isRead, shown, updated, notified)
}

func usersOf(members []match.Member) (users []mxid.UserID) {
	for _, m := range members {
		users = append(users, m.User)
	}
	return users
}

// count adds the event to the unread counts before a sync can show it.
func (o *outbox) count(ctx context.Context, h handover, decisions module.Decisions) (counted, isRead error) {
	at := module.Place{Room: h.Room, Position: h.event.Position, Thread: h.event.Thread, Sender: h.sender}
	if len(h.left.Count) > 0 {
		counted = o.unread.Add(ctx, at, decisions)
	}
	if h.left.Read && h.reads != "" {
		isRead = o.unread.Read(ctx, h.reads, h.Room, module.AllThreads, h.event.Position)
	}
	return counted, isRead
}

// read marks messages as read, and tells the user's syncs and pushers.
func (o *outbox) read(ctx context.Context, user mxid.UserID, room, thread string, position int64) error {
	if err := o.unread.Read(ctx, user, room, thread, position); err != nil {
		return err
	}
	if err := o.rooms.Changed(ctx, room, user); err != nil {
		return err
	}
	o.waker.wake(user)
	return o.notifier.UpdateBadges(ctx, user)
}

// showTo makes an event visible to syncs, and wakes them.
func (o *outbox) showTo(ctx context.Context, room string, e rooms.Event, users []mxid.UserID) error {
	if len(users) == 0 {
		return nil
	}
	err := o.rooms.Show(ctx, room, e, users)
	away := leftOf(users, err)
	for _, user := range users {
		if !slices.Contains(away, user) {
			o.waker.wake(user)
		}
	}
	return err
}

// toDecide returns the members who are left and whose push rules are evaluated: all but the sender and members that
// ignore the sender. Unread are the members whose lists cannot be read now. The demo has no remote users, no users of
// application services, and no members that have left.
func (o *outbox) toDecide(ctx context.Context, h handover) (members []match.Member, unread []mxid.UserID, err error) {
	wanted := append(slices.Clone(h.left.Count), h.left.Notify...)
	others := slices.DeleteFunc(both(h.members, wanted), func(user mxid.UserID) bool { return user == h.sender })
	if len(others) == 0 {
		return nil, nil, nil
	}
	users, err := o.users.WithoutIgnoring(ctx, others, h.sender)
	for _, user := range users {
		members = append(members, match.Member{User: user, Power: h.power.of(user)})
	}
	if err != nil {
		unread = slices.DeleteFunc(others, func(user mxid.UserID) bool { return slices.Contains(users, user) })
	}
	return members, unread, err
}

// redact removes the content of an event and shows the redaction to the members of the room.
func (o *outbox) redact(ctx context.Context, room string, e, redaction rooms.Event) error {
	if err := o.rooms.Redact(ctx, room, e, redaction.JSON); err != nil {
		return err
	}
	redaction, members, err := o.rooms.Add(ctx, room, redaction, rooms.Change{}, "")
	if err != nil {
		return err
	}
	if err := o.unread.Forget(ctx, room, e.Position, members.Users()); err != nil {
		return err
	}
	if err := o.showTo(ctx, room, redaction, members.Users(rooms.Joined)); err != nil {
		return err
	}
	return o.notifier.UpdateBadges(ctx, members.Users()...)
}

func (o *outbox) handOverRest(ctx context.Context, age time.Duration) error {
	rows, err := o.rooms.Rows(ctx, age)
	for _, r := range rows {
		if again := o.sendAgain(ctx, r); err == nil {
			err = again
		}
	}
	return err
}

// removeRows removes the rows of events that were handed over. If that fails, the events are handed over again, which
// has no effect.
func (o *outbox) removeRows(ctx context.Context, rows ...rooms.Row) {
	for len(o.done) > 0 {
		rows = append(rows, <-o.done)
	}
	if len(rows) > 0 {
		_ = o.rooms.HandedOver(context.WithoutCancel(ctx), rows...)
	}
}

// run scans the outbox at once and then every minute, and removes the rows in done.
func (o *outbox) run(ctx context.Context, log *zap.Logger) {
	every := time.NewTicker(outboxEvery)
	defer every.Stop()
	for isTime := true; ; {
		if isTime {
			if err := o.handOverRest(ctx, outboxAge); err != nil && ctx.Err() == nil {
				log.Warn("events wait in the outbox", zap.String("error", fault.Details(err)))
			}
		}
		select {
		case <-ctx.Done():
			o.removeRows(ctx)
			return
		case <-every.C:
			isTime = true
		case r := <-o.done:
			isTime = false
			o.removeRows(ctx, r)
		}
	}
}

func startOutbox(lc fx.Lifecycle, o *outbox, log *zap.Logger) {
	runInBackground(lc, func(ctx context.Context) { o.run(ctx, log) })
}

// runInBackground calls run when the host starts, and ends its context when it stops.
func runInBackground(lc fx.Lifecycle, run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	lc.Append(fx.StartStopHook(
		func() { running.Go(func() { run(ctx) }) },
		func() {
			cancel()
			running.Wait()
		},
	))
}
