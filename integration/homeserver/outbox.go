package main

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/integration/sqlstore"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// outbox stores events and hands them over to the module.
type outbox struct {
	sqlstore.Outbox
	rooms    *rooms.Store
	notifier module.Notifier
	unread   module.UnreadService
	waker    *waker
	log      *zap.Logger

	running sync.WaitGroup           // handovers of new events
	handOut func(sqlstore.Row) error // HandOver, until the drain time is over

	mu      sync.Mutex
	waiting map[int64]*sender // for their events to be shown
}

// sender is a user who waits until an event is visible to the user's syncs.
type sender struct {
	user  mxid.UserID
	shown chan struct{}
}

// newOutbox returns an outbox that ends when the host stops, after the servers.
func newOutbox(
	lc fx.Lifecycle, cfg config, db *data.DB, store *rooms.Store, events module.EventService,
	notifier module.Notifier, unread module.UnreadService, waker *waker, log *zap.Logger,
) *outbox {
	o := &outbox{rooms: store, notifier: notifier, unread: unread, waker: waker, log: log, waiting: map[int64]*sender{}}
	o.Outbox = sqlstore.Outbox{DB: db.Writer(), Events: events, Now: time.Now, Event: o.event, Shown: o.show}
	ctx, cutOff := context.WithCancel(context.Background())
	o.handOut = func(row sqlstore.Row) error { return o.HandOver(ctx, row) }
	lc.Append(fx.StopHook(func() { // what is left after the drain time goes to other hosts
		defer time.AfterFunc(cfg.drain, cutOff).Stop()
		o.running.Wait()
	}))
	runInBackground(lc, func(ctx context.Context) {
		o.Run(ctx, func(err error) { log.Warn("events wait in the outbox", zap.String("error", fault.Details(err))) })
	})
	return o
}

// add stores an event with its row in the outbox, and begins to hand it over. It returns when the syncs of the sender
// show the event, or when ctx ends. If the room has an event with the same id, it returns the earlier event.
func (o *outbox) add(ctx context.Context, e rooms.Event, change rooms.Change, user mxid.UserID) (rooms.Event, error) {
	var row sqlstore.Row
	e, err := o.rooms.Add(ctx, e, change, func(ctx context.Context, tx *data.Tx, e rooms.Event) (err error) {
		row, err = o.Add(ctx, tx, e.Position, e.Room)
		return err
	})
	if err != nil || row.ID == 0 {
		return e, err
	}
	waits := &sender{user, make(chan struct{})}
	o.mu.Lock()
	o.waiting[row.ID] = waits
	o.mu.Unlock()
	done := make(chan struct{})
	o.running.Go(func() {
		defer close(done)
		o.handOver(row, e.ID)
	})
	select {
	case <-waits.shown:
	case <-done:
	case <-ctx.Done():
	}
	return e, nil
}

func (o *outbox) handOver(row sqlstore.Row, id string) {
	if err := o.handOut(row); err != nil {
		o.log.Warn("an event was not handed over to all users", zap.String("event_id", id), zap.String("error", fault.Details(err)))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.waiting, row.ID)
}

// show makes an event visible to syncs, and wakes them.
func (o *outbox) show(position int64, users []mxid.UserID) error {
	if err := o.rooms.Show(context.Background(), position, users); err != nil {
		return err
	}
	for _, user := range users {
		o.waker.wake(user)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if waits := o.waiting[position]; waits != nil && slices.Contains(users, waits.user) {
		delete(o.waiting, position)
		close(waits.shown)
	}
	return nil
}

// event returns an event with the members of its room now. The demo has no remote users, and no users of application
// services.
func (o *outbox) event(ctx context.Context, position int64) (n module.NewEvent, found bool, err error) {
	e, found, err := o.rooms.EventAt(ctx, position)
	if err != nil || !found || e.Redacted {
		return n, false, err
	}
	about := readEvent(e.JSON)
	room, err := o.rooms.Room(ctx, e.Room, about.Sender)
	if err != nil {
		return n, false, err
	}
	related, err := o.relatedTo(ctx, e, about)
	if err != nil {
		return n, false, err
	}
	var power *power // nil: unknown
	if e.Power != "" {
		if err := json.Unmarshal([]byte(e.Power), &power); err != nil {
			return n, false, err
		}
	}
	joined := room.Members.Users(rooms.Joined)
	n = module.NewEvent{
		Event: module.Event{
			JSON: e.JSON, RoomName: room.Name, SenderName: sessions.Localpart(about.Sender), Position: e.Position, Thread: e.Thread, Related: related,
			Room: match.Room{MemberCount: max(1, len(joined)), Power: power.fact()},
		},
		Sender: about.Sender,
	}
	switch user, is := about.membership(); {
	case user == "":
	case is != rooms.Invited:
		n.Changed = user
	case room.Members[user] == rooms.Invited:
		joined = append(joined, user)
	}
	for _, user := range joined {
		if slices.Contains(room.Ignoring, user) {
			n.Others = append(n.Others, user)
		} else {
			n.Members = append(n.Members, match.Member{User: user, Power: power.of(user)})
		}
	}
	return n, true, nil
}

// about is what the host reads of an event.
type about struct {
	Type     string
	Sender   mxid.UserID
	StateKey *mxid.UserID `json:"state_key"`
	Content  json.RawMessage
}

func readEvent(event string) (a about) {
	_ = json.Unmarshal([]byte(event), &a) // a member of another type stays empty
	return a
}

// membership returns the user whose membership the event changes, and the new membership. User is empty for other
// events.
func (a about) membership() (user mxid.UserID, is rooms.Membership) {
	var content struct {
		Membership rooms.Membership `json:"membership"`
	}
	if a.Type != "m.room.member" || a.StateKey == nil || a.StateKey.Validate() != nil || json.Unmarshal(a.Content, &content) != nil ||
		!slices.Contains([]rooms.Membership{rooms.Joined, rooms.Invited, rooms.Left, "ban"}, content.Membership) {
		return "", ""
	}
	return *a.StateKey, content.Membership
}

// relatedTo returns the event that an encrypted event refers to, by which the module knows a call. It is zero for other
// events, and if the event is not found.
func (o *outbox) relatedTo(ctx context.Context, e rooms.Event, about about) (related module.RelatedEvent, err error) {
	if about.Type != "m.room.encrypted" || rooms.RelationOf(e.JSON).Type != "m.reference" {
		return related, nil
	}
	referred, found, err := o.rooms.Event(ctx, e.Room, e.Parent)
	if err != nil || !found {
		return related, err
	}
	about = readEvent(referred.JSON)
	return module.RelatedEvent{Type: about.Type, Sender: about.Sender}, nil
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

// redact removes the content of an event and shows the redaction to the members of the room.
func (o *outbox) redact(ctx context.Context, e, redaction rooms.Event) error {
	redaction, err := o.rooms.Redact(ctx, e, redaction)
	if err != nil {
		return err
	}
	room, err := o.rooms.Room(ctx, e.Room, "")
	if err != nil {
		return err
	}
	if err := o.unread.Forget(ctx, e.Room, e.Position, room.Members.Users()); err != nil {
		return err
	}
	if err := o.show(redaction.Position, room.Members.Users(rooms.Joined)); err != nil {
		return err
	}
	return o.notifier.UpdateBadges(ctx, room.Members.Users()...)
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
