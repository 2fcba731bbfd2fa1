package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
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

// outbox stores each event until some host has handed it over to the module. All hosts share
// it, so an event survives the death of its host.
type outbox struct {
	client   redis.UniversalClient
	key      string
	timeout  time.Duration
	users    *sessions.Store
	rooms    *rooms.Store
	notifier module.Notifier
	unread   module.UnreadService
	waker    *waker
	done     chan string // rows to delete
}

// maxDone is the number of rows that can wait for their deletion. A row beyond it stays and is handed over again, which
// has no effect.
const maxDone = 1000

func newOutbox(
	cfg config, client redis.UniversalClient, users *sessions.Store, rooms *rooms.Store, notifier module.Notifier,
	unread module.UnreadService, waker *waker,
) *outbox {
	redis := cfg.module.Redis
	return &outbox{client, redis.KeyPrefix + "demo:outbox", redis.OperationTimeout, users, rooms, notifier, unread, waker, make(chan string, maxDone)}
}

// row is an event to hand over. A host with a database would write the row in the transaction that stores the event.
type row struct {
	ID      string // event id
	Room    string
	Event   module.Event
	Members []mxid.UserID
	Others  []mxid.UserID // users that see the event without being notified
	Sender  mxid.UserID
	Reads   mxid.UserID // the user who joined or left by this event, and so has read the room; empty: none
	Power   *power      // nil: unknown
}

// writeRow stores a row with the time of Redis, since the clocks of hosts differ.
var writeRow = redis.NewScript(`return redis.call('HSET', KEYS[1], ARGV[1], redis.call('TIME')[1] .. ' ' .. ARGV[2])`)

var readRows = redis.NewScript(`return {redis.call('TIME')[1], redis.call('HGETALL', KEYS[1])}`)

// commit stores an event's row. After it has returned nil, this or another host hands the event over.
func (o *outbox) commit(ctx context.Context, r row) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	data, err := json.Marshal(r)
	if err == nil {
		err = writeRow.Run(ctx, o.client, []string{o.key}, r.ID, data).Err()
	}
	if err != nil {
		return module.Unavailable(fmt.Errorf("host: %w", err))
	}
	return nil
}

// send stores an event's row and hands the event over. At the same time it reads which members ignore the sender, to
// save a round trip.
func (o *outbox) send(ctx context.Context, r row) error {
	var members []match.Member
	var failed error
	var reading sync.WaitGroup
	reading.Go(func() { members, failed = o.toDecide(ctx, r) })
	err := o.commit(ctx, r)
	reading.Wait()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	return o.handedOver(r, o.notify(ctx, r, members))
}

// sendAgain hands over an event that an earlier try may not have handed over, unless the event was redacted since then.
func (o *outbox) sendAgain(ctx context.Context, r row) error {
	if e, _, err := o.rooms.Event(ctx, r.Room, r.ID); err != nil || e.Redacted {
		return o.handedOver(r, err)
	}
	members, err := o.toDecide(ctx, r)
	if err == nil {
		err = o.notify(ctx, r, members)
	}
	return o.handedOver(r, err)
}

// handedOver returns err, the result of handing an event over. After success, or if another try cannot help, it passes
// the row to run for deletion.
func (o *outbox) handedOver(r row, err error) error {
	if err == nil || module.IsPermanent(err) {
		select {
		case o.done <- r.ID:
		default:
		}
	}
	return err
}

func (o *outbox) notify(ctx context.Context, r row, members []match.Member) error {
	decisions, err := o.notifier.Decide(ctx, r.Event, members)
	if err != nil {
		return err
	}
	if err := o.count(ctx, r, decisions); err != nil {
		return err
	}
	changed := []mxid.UserID{r.Sender} // users whose badges change without a notification
	if r.Reads != "" && r.Reads != r.Sender {
		changed = append(changed, r.Reads)
	}
	var shown, notified, updated error
	var all sync.WaitGroup
	all.Go(func() { shown = o.show(ctx, r) })
	all.Go(func() { updated = o.notifier.UpdateBadges(ctx, changed...) })
	notified = o.notifier.Notify(ctx, r.Event, "", decisions)
	all.Wait()
	return errors.Join(shown, updated, notified) // the first error decides whether the row stays
}

// count adds the event to the unread counts before a sync can show it.
func (o *outbox) count(ctx context.Context, r row, decisions module.Decisions) error {
	at := module.Place{Room: r.Room, Position: r.Event.Position, Thread: r.Event.Thread, Sender: r.Sender}
	if err := o.unread.Add(ctx, at, decisions); err != nil || r.Reads == "" {
		return err
	}
	return o.unread.Read(ctx, r.Reads, r.Room, module.AllThreads, r.Event.Position)
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

// show makes the event visible to syncs.
func (o *outbox) show(ctx context.Context, r row) error {
	users := append(slices.Clone(r.Members), r.Others...)
	slices.Sort(users)
	return o.showTo(ctx, r.Room, rooms.Event{ID: r.ID, Position: r.Event.Position}, slices.Compact(users))
}

func (o *outbox) showTo(ctx context.Context, room string, e rooms.Event, users []mxid.UserID) error {
	if err := o.rooms.Show(ctx, room, e, users); err != nil {
		return err
	}
	for _, user := range users {
		o.waker.wake(user)
	}
	return nil
}

// toDecide returns the members whose push rules are evaluated: the members that do not ignore the sender. The demo has
// no remote users, no users of application services, and no members that have left.
func (o *outbox) toDecide(ctx context.Context, r row) (members []match.Member, err error) {
	var event struct {
		Sender mxid.UserID `json:"sender"`
	}
	if err := json.Unmarshal([]byte(r.Event.JSON), &event); err != nil {
		return nil, fault.New(fault.InvalidParam, "Not an event.")
	}
	users, err := o.users.WithoutIgnoring(ctx, r.Members, event.Sender)
	for _, user := range users {
		members = append(members, match.Member{User: user, Power: r.Power.of(user)})
	}
	return members, err
}

// redact removes the content of an event and shows the redaction to the members of the room.
func (o *outbox) redact(ctx context.Context, room string, e, redaction rooms.Event) error {
	if err := o.rooms.Redact(ctx, room, e, redaction.JSON); err != nil {
		return err
	}
	redaction, members, err := o.rooms.Add(ctx, room, redaction, rooms.Change{})
	if err != nil {
		return err
	}
	if err := o.unread.Forget(ctx, room, e.Position, members.Users()); err != nil {
		return err
	}
	if err := o.showTo(ctx, room, redaction, members.Users()); err != nil {
		return err
	}
	return o.notifier.UpdateBadges(ctx, members.Users()...)
}

func (o *outbox) handOverRest(ctx context.Context, age time.Duration) error {
	rows, err := o.olderThan(ctx, age)
	for _, r := range rows {
		if again := o.sendAgain(ctx, r); err == nil {
			err = again
		}
	}
	return err
}

func (o *outbox) olderThan(ctx context.Context, age time.Duration) (rows []row, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	reply, err := readRows.Run(ctx, o.client, []string{o.key}).Slice()
	if err != nil {
		return nil, fmt.Errorf("host: read the outbox: %w", err)
	}
	now, _ := strconv.ParseInt(fmt.Sprint(reply[0]), 10, 64)
	fields, _ := reply[1].([]any)
	for i := 1; i < len(fields); i += 2 {
		written, data, _ := strings.Cut(fmt.Sprint(fields[i]), " ")
		at, _ := strconv.ParseInt(written, 10, 64)
		var r row
		if now-at >= int64(age/time.Second) && json.Unmarshal([]byte(data), &r) == nil {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// deleteRows deletes the rows of events that were handed over. If the deletion fails, the events are handed over again,
// which has no effect.
func (o *outbox) deleteRows(ctx context.Context, ids ...string) {
	for len(o.done) > 0 {
		ids = append(ids, <-o.done)
	}
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.timeout)
	defer cancel()
	_ = o.client.HDel(ctx, o.key, ids...).Err()
}

// run scans the outbox at once and then every minute, and deletes the rows in done.
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
			o.deleteRows(ctx)
			return
		case <-every.C:
			isTime = true
		case id := <-o.done:
			isTime = false
			o.deleteRows(ctx, id)
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
