package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// OutboxSchema has a row for each event that is not handed over to all of its users yet. The id of a row is the
// position of its event. Until is a time in milliseconds: until then a host holds the row, or it waits for its next try.
const OutboxSchema = `
CREATE TABLE IF NOT EXISTS push_outbox (
	id BIGINT PRIMARY KEY,
	room_id TEXT NOT NULL,
	rest TEXT NOT NULL DEFAULT '',
	tries BIGINT NOT NULL DEFAULT 0,
	until BIGINT NOT NULL,
	held BOOLEAN NOT NULL DEFAULT TRUE
);
CREATE INDEX IF NOT EXISTS push_outbox_until ON push_outbox (until, room_id);
CREATE INDEX IF NOT EXISTS push_outbox_room ON push_outbox (room_id, until)`

// Outbox hands events over. The hosts of a homeserver share the table. It is safe for concurrent use.
type Outbox struct {
	DB     Database
	Events module.EventService
	Now    func() time.Time // all hosts agree on it, to some seconds

	// Event returns an event with its present members. Found is false if it was redacted.
	Event func(ctx context.Context, id int64) (e module.NewEvent, found bool, err error)

	// Shown makes an event visible to the syncs of users; see [module.EventService]. After an error, it is called again.
	Shown func(id int64, users []mxid.UserID) error

	mu     sync.Mutex
	turns  map[string]*turn // the last one of each room with new events
	due    map[string]bool  // the rooms whose due rows this host hands over
	places int              // how many such rooms there may be
	done   int              // rows that were done since the last scan
	ended  time.Time        // when the last wait was ended for all rows
}

// Row is a row that this host holds.
type Row struct {
	ID    int64
	Room  string
	Rest  module.Rest
	Tries int
	taken time.Time
	until int64 // as in the table; it changes when another host takes the row
}

const (
	// lease is how long other hosts leave a row to the host that holds it. The host uses half of it.
	lease = time.Minute

	inTurn = 200 * time.Millisecond // that an event waits for the event before it

	endEvery = 10 * time.Second // at most, waits are ended

	// A host hands over due rows of so many rooms at a time. It doubles the number each second while rows are done,
	// and halves it while none is: 10,000 rows that wait for a storage cost little, and are soon done when it is back.
	fewRooms, manyRooms = 4, 256

	maxTaken  = 100  // rows of a room at a time
	maxLooked = 1000 // due rows, in search for rooms

	logEvery = 30 * time.Second
)

// Database is what Outbox needs of an [sql.DB]. QueryContext writes, too.
type Database interface {
	Transaction
	QueryContext(ctx context.Context, statement string, args ...any) (*sql.Rows, error)
}

// Transaction is what Outbox needs of an [sql.Tx].
type Transaction interface {
	ExecContext(ctx context.Context, statement string, args ...any) (sql.Result, error)
}

// Add adds the row of an event in the transaction that stores the event. After the commit, this host calls HandOver.
func (o *Outbox) Add(ctx context.Context, tx Transaction, id int64, room string) (Row, error) {
	r := Row{ID: id, Room: room, taken: time.Now(), until: o.Now().Add(lease).UnixMilli()}
	_, err := tx.ExecContext(ctx, `INSERT INTO push_outbox (id, room_id, until) VALUES ($1, $2, $3)`, id, room, r.until)
	return r, err
}

// HandOver hands over a new event: after the event before in its room, and beside other rooms. If ctx ends, another
// host takes the row at once. The error is for the log.
func (o *Outbox) HandOver(ctx context.Context, r Row) error {
	defer o.takeTurn(r.Room)()
	return o.handOver(ctx, r)
}

func (o *Outbox) handOver(stop context.Context, r Row) error {
	ctx, cancel := context.WithDeadline(stop, r.taken.Add(lease/2))
	defer cancel()
	rest, isLeft, err := o.try(ctx, r)
	if !isLeft {
		return errors.Join(err, o.write(ctx, `DELETE FROM push_outbox WHERE id = $1`, r.ID), o.endWaits(ctx, r))
	}
	until := o.Now() // another host takes it at once
	if stop.Err() == nil {
		until = until.Add(time.Second << min(r.Tries, 3))
	}
	return errors.Join(err, o.write(ctx, `UPDATE push_outbox SET rest = $2, tries = $3, until = $4, held = FALSE WHERE id = $1 AND until = $5`,
		r.ID, rest, r.Tries+1, until.UnixMilli(), r.until))
}

// try hands the event of a row over, and returns what is left.
func (o *Outbox) try(ctx context.Context, r Row) (rest module.Rest, isLeft bool, err error) {
	e, found, err := o.Event(ctx, r.ID)
	if err != nil || !found {
		return r.Rest, err != nil, err
	}
	var notShown error
	rest, err = o.Events.HandOver(ctx, e, r.Rest, func(users []mxid.UserID) {
		notShown = errors.Join(notShown, o.Shown(r.ID, users))
	})
	if notShown != nil { // the next try shows it
		return r.Rest, true, errors.Join(notShown, err)
	}
	return rest, rest != "", err
}

// endWaits ends the waits of all rows after the last try of a row: a storage that was away answers again. Then the
// order of tries is that of the events. In another order, the module may have forgotten an event whose reply was lost.
func (o *Outbox) endWaits(ctx context.Context, r Row) error {
	o.mu.Lock()
	now := o.Now()
	isTime := r.Rest != "" && now.Sub(o.ended) >= endEvery
	if isTime {
		o.ended = now
	}
	o.mu.Unlock()
	if !isTime {
		return nil
	}
	return o.write(ctx, `UPDATE push_outbox SET until = $1 WHERE NOT held AND until > $1`, now.UnixMilli()-1)
}

// write runs a statement until it succeeds or ctx ends, and at least once: an event whose row stays as it is will be
// handed over again.
func (o *Outbox) write(ctx context.Context, statement string, args ...any) error {
	for {
		_, err := o.DB.ExecContext(context.WithoutCancel(ctx), statement, args...)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// turn is when a new event of a room is handed over.
type turn struct{ began, ended chan struct{} }

// takeTurn waits until the event before in the room has been handed over, but not longer than inTurn: then it waits for
// users whose storage is away.
func (o *Outbox) takeTurn(room string) (end func()) {
	mine := &turn{make(chan struct{}), make(chan struct{})}
	o.mu.Lock()
	before := o.turns[room]
	if o.turns == nil {
		o.turns = map[string]*turn{}
	}
	o.turns[room] = mine
	o.mu.Unlock()
	if before != nil {
		<-before.began
		select {
		case <-before.ended:
		case <-time.After(inTurn):
		}
	}
	close(mine.began)
	return func() {
		close(mine.ended)
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.turns[room] == mine {
			delete(o.turns, room)
		}
	}
}

// Run hands over the rows that are due until ctx ends: what is left of events, and the events of hosts that have died.
// It looks for them each second, and waits for no room. Failed gets an error for the log, once in logEvery at most.
func (o *Outbox) Run(ctx context.Context, failed func(error)) {
	var all sync.WaitGroup
	defer all.Wait()
	every := time.NewTicker(time.Second)
	defer every.Stop()
	errs := make(chan error, 1)
	var logged time.Time
	for {
		o.scan(ctx, &all, errs)
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		select {
		case err := <-errs:
			if time.Since(logged) >= logEvery {
				failed(err)
				logged = time.Now()
			}
		default:
		}
	}
}

// scan begins to hand over what is due. A full errs gets no more errors.
func (o *Outbox) scan(ctx context.Context, all *sync.WaitGroup, errs chan<- error) {
	report := func(err error) {
		if err == nil || ctx.Err() != nil {
			return
		}
		select {
		case errs <- err:
		default:
		}
	}
	rooms, err := o.dueRooms(ctx)
	report(err)
	for _, room := range rooms {
		all.Go(func() {
			defer o.endDue(room)
			report(o.handOverDue(ctx, room))
		})
	}
}

// handOverDue hands over the due rows of a room in their order: first one, and then more, until a row is not done.
func (o *Outbox) handOverDue(ctx context.Context, room string) error {
	for n := 1; ; n = min(2*n, maxTaken) {
		rows, err := o.take(ctx, room, n)
		for _, r := range rows {
			if time.Since(r.taken) < lease/2 { // otherwise it will be due again
				err = cmp.Or(o.handOver(ctx, r), err)
			}
		}
		if err != nil || len(rows) < n {
			return err
		}
		o.mu.Lock()
		o.done += n
		o.mu.Unlock()
	}
}

// dueRooms returns rooms that have due rows, and that this host does not work on. It does so from now on. While rows are
// done, it begins with the oldest event. Otherwise it begins with what has become due last: what has failed for long
// must not delay the events of a host that has died.
func (o *Outbox) dueRooms(ctx context.Context) (rooms []string, err error) {
	args, others := []any{o.Now().UnixMilli(), maxLooked}, []string{"''"}
	o.mu.Lock()
	o.places = max(o.places/2, fewRooms)
	if o.done > 0 {
		o.places = min(4*o.places, manyRooms)
	}
	o.done = 0
	order, places := "id", o.places-len(o.due)
	if o.places == fewRooms {
		order = "until DESC"
	}
	for room := range o.due {
		args = append(args, room)
		others = append(others, fmt.Sprintf("$%d", len(args)))
	}
	o.mu.Unlock()
	found, err := o.DB.QueryContext(ctx, `SELECT room_id FROM push_outbox WHERE until < $1 AND room_id NOT IN (`+strings.Join(others, ",")+`)
		ORDER BY `+order+` LIMIT $2`, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for found.Next() && len(rooms) < places {
		var room string
		if err := found.Scan(&room); err != nil {
			return nil, err
		}
		if !slices.Contains(rooms, room) {
			rooms = append(rooms, room)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.due == nil {
		o.due = map[string]bool{}
	}
	for _, room := range rooms {
		o.due[room] = true
	}
	return rooms, found.Err()
}

func (o *Outbox) endDue(room string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.due, room)
}

// take takes due rows of a room for this host, in the order of events.
func (o *Outbox) take(ctx context.Context, room string, n int) (taken []Row, err error) {
	now := o.Now()
	until := now.Add(lease).UnixMilli()
	rows, err := o.DB.QueryContext(ctx, `UPDATE push_outbox SET until = $3, held = TRUE WHERE until < $2 AND id IN
		(SELECT id FROM push_outbox WHERE room_id = $1 AND until < $2 ORDER BY id LIMIT $4) RETURNING id, rest, tries`,
		room, now.UnixMilli(), until, n)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r := Row{Room: room, taken: time.Now(), until: until}
		if err := rows.Scan(&r.ID, &r.Rest, &r.Tries); err != nil {
			return taken, err
		}
		taken = append(taken, r)
	}
	slices.SortFunc(taken, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	return taken, rows.Err()
}
