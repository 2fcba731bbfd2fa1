package rooms

import (
	"context"
	"slices"
	"time"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module/mxid"
)

// maxReceipts bounds the receipts of a user. A user has one for each kind and thread.
const maxReceipts = 2000

// Receipt says that a user has read up to an event.
type Receipt struct {
	Kind   string // m.read or m.read.private
	Thread string // empty for all threads
	Event  string
	Time   time.Time
}

// SetReceipt stores a user's receipt for an event, unless the stored receipt is for the same or a later event, or the
// user has too many receipts.
func (s *Store) SetReceipt(ctx context.Context, user mxid.UserID, e Event, kind, thread string) error {
	return s.db.Exec(ctx, `INSERT INTO receipts SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
		WHERE (SELECT COUNT(*) FROM receipts WHERE user_id = ?1) < ?8 OR
			EXISTS (SELECT 1 FROM receipts WHERE user_id = ?1 AND room_id = ?2 AND kind = ?3 AND thread = ?4)
		ON CONFLICT DO UPDATE SET event_id = excluded.event_id, position = excluded.position, ts = excluded.ts
		WHERE receipts.position < excluded.position`,
		user, e.Room, kind, thread, e.ID, e.Position, time.Now().UnixMilli(), maxReceipts)
}

// Receipts returns a user's receipts by room.
func (s *Store) Receipts(ctx context.Context, user mxid.UserID) (map[string][]Receipt, error) {
	all := map[string][]Receipt{}
	_, err := data.All(ctx, s.db, func(scan data.Scan) (r Receipt, err error) {
		var room string
		var millis int64
		err = scan(&room, &r.Kind, &r.Thread, &r.Event, &millis)
		r.Time = time.UnixMilli(millis)
		all[room] = append(all[room], r)
		return r, err
	}, `SELECT room_id, kind, thread, event_id, ts FROM receipts WHERE user_id = ?`, user)
	return all, err
}

// MaxDepth is the maximum of depth in [Store.Relations].
const MaxDepth = maxHops

// Relations returns the visible events of a room that relate to an event, directly or through other events, the newest
// first. Depth is the maximum number of relations from a returned event to that event.
func (s *Store) Relations(ctx context.Context, room, root string, depth int) (related []Event, err error) {
	all, _, err := s.Timeline(ctx, room, keptEvents)
	depths := map[string]int{root: 0}
	for _, e := range all { // an event comes after the event that it relates to
		if at, found := depths[e.Parent]; found && at < depth {
			depths[e.ID], related = at+1, append(related, e)
		}
	}
	slices.Reverse(related)
	return related, err
}
