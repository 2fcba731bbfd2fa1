package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// OutboxSchema has a row for each event that is not handed over to all of its users yet. The id of a row is the
// position of its event. Until is a time in milliseconds: until then a host holds the row.
const OutboxSchema = `
CREATE TABLE IF NOT EXISTS push_outbox (
	id BIGINT PRIMARY KEY,
	room_id TEXT NOT NULL,
	rest TEXT NOT NULL DEFAULT '',
	tries BIGINT NOT NULL DEFAULT 0,
	until BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS push_outbox_until ON push_outbox (until)`

// Outbox hands events over. The hosts of a homeserver share the table. It is safe for concurrent use.
type Outbox struct {
	DB     *sql.DB
	Events module.EventService
	Now    func() time.Time // all hosts agree on it, to some seconds

	// Event returns an event with its present members. Found is false if it was redacted.
	Event func(ctx context.Context, id int64) (e module.NewEvent, found bool, err error)

	// Shown makes an event visible to the syncs of users; see [module.EventService].
	Shown func(id int64, users []mxid.UserID)
}

// Row is a row that this host holds.
type Row struct {
	ID    int64
	Rest  module.Rest
	Tries int
}

// lease is how long other hosts leave a row to the host that holds it.
const lease = time.Minute

// Add adds the row of an event in the transaction that stores the event. After the commit, this host calls HandOver.
func (o *Outbox) Add(ctx context.Context, tx *sql.Tx, id int64, room string) (Row, error) {
	until := o.Now().Add(lease).UnixMilli()
	_, err := tx.ExecContext(ctx, `INSERT INTO push_outbox (id, room_id, until) VALUES ($1, $2, $3)`, id, room, until)
	return Row{ID: id}, err
}

// HandOver hands over the event of a row. Call it for the events of a room one after the other, and for rooms side by
// side. The error is for the log.
func (o *Outbox) HandOver(ctx context.Context, r Row) error {
	e, found, err := o.Event(ctx, r.ID)
	if err != nil {
		return err // another try when the lease has lapsed
	}
	if found {
		r.Rest, err = o.Events.HandOver(ctx, e, r.Rest, func(users []mxid.UserID) { o.Shown(r.ID, users) })
	}
	ctx = context.WithoutCancel(ctx)
	if !found || r.Rest == "" {
		_, failed := o.DB.ExecContext(ctx, `DELETE FROM push_outbox WHERE id = $1`, r.ID)
		return errors.Join(err, failed)
	}
	until := o.Now().Add(min(time.Second<<min(r.Tries, 6), time.Minute)).UnixMilli()
	_, failed := o.DB.ExecContext(ctx, `UPDATE push_outbox SET rest = $2, tries = $3, until = $4 WHERE id = $1`, r.ID, r.Rest, r.Tries+1, until)
	return errors.Join(err, failed)
}

// take takes a row for this host. Found is false if another host holds it, or it is gone.
func (o *Outbox) take(ctx context.Context, id int64) (r Row, found bool, err error) {
	now := o.Now()
	r.ID = id
	err = o.DB.QueryRowContext(ctx, `UPDATE push_outbox SET until = $3 WHERE id = $1 AND until < $2 RETURNING rest, tries`,
		id, now.UnixMilli(), now.Add(lease).UnixMilli()).Scan(&r.Rest, &r.Tries)
	if errors.Is(err, sql.ErrNoRows) {
		return r, false, nil
	}
	return r, err == nil, err
}

// HandOverDue hands over what nobody holds any more: what is left of events, and the events of hosts that have died.
// Each host calls it every second, beside the handovers of new events.
func (o *Outbox) HandOverDue(ctx context.Context) error {
	rooms, err := o.due(ctx)
	if err != nil {
		return err
	}
	errs := make(chan error, len(rooms))
	var all sync.WaitGroup
	for _, ids := range rooms {
		all.Go(func() {
			var err error
			for _, id := range ids {
				if r, found, failed := o.take(ctx, id); failed != nil {
					err = failed
				} else if found {
					err = errors.Join(err, o.HandOver(ctx, r))
				}
			}
			errs <- err
		})
	}
	all.Wait()
	close(errs)
	for one := range errs {
		err = errors.Join(err, one)
	}
	return err
}

// due returns the ids of rows that nobody holds, by room and in order.
func (o *Outbox) due(ctx context.Context) (map[string][]int64, error) {
	rows, err := o.DB.QueryContext(ctx, `SELECT id, room_id FROM push_outbox WHERE until < $1 ORDER BY id LIMIT 1000`, o.Now().UnixMilli())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	rooms := map[string][]int64{}
	for rows.Next() {
		var id int64
		var room string
		if err := rows.Scan(&id, &room); err != nil {
			return nil, err
		}
		rooms[room] = append(rooms[room], id)
	}
	return rooms, rows.Err()
}
