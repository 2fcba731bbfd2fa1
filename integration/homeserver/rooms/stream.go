package rooms

import (
	"context"
	"database/sql"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module/mxid"
)

// keptChanges is how many changes of all users are kept. A sync that has missed older changes gets all rooms.
const keptChanges = 100_000

// Show makes an event visible to the syncs of users. After a second call for an event, a sync may get the event again.
func (s *Store) Show(ctx context.Context, position int64, users []mxid.UserID) error {
	return s.change(ctx, users, []string{
		`UPDATE events SET is_shown = 1 WHERE position = ?2 AND NOT is_shown`,
		`INSERT INTO changes (user_id, room_id, position) SELECT value, room_id, position FROM json_each(?1), events WHERE position = ?2`,
	}, position)
}

// Changed tells the syncs of users that the counts of a room changed.
func (s *Store) Changed(ctx context.Context, room string, users ...mxid.UserID) error {
	return s.change(ctx, users, []string{`INSERT INTO changes (user_id, room_id) SELECT value, ?2 FROM json_each(?1)`}, room)
}

// AccountDataChanged tells the syncs of a user that account data of a type changed: of a room, or global if room is
// empty.
func (s *Store) AccountDataChanged(ctx context.Context, user mxid.UserID, room, kind string) error {
	return s.change(ctx, []mxid.UserID{user}, []string{`INSERT INTO changes (user_id, room_id, type) SELECT value, ?2, ?3 FROM json_each(?1)`}, room, kind)
}

// change runs statements with a list of users and other arguments, and removes old changes.
func (s *Store) change(ctx context.Context, users []mxid.UserID, statements []string, args ...any) error {
	list, err := json.Marshal(append([]mxid.UserID{}, users...)) // never null
	if err != nil {
		return err
	}
	args = append([]any{string(list)}, args...)
	return s.db.Write(ctx, func(ctx context.Context, tx *data.Tx) error {
		for _, statement := range statements {
			if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM changes WHERE number <= (SELECT MAX(number) FROM changes) - ?`, keptChanges)
		return err
	})
}

// Changes are a user's changes since a token.
type Changes struct {
	Token       string              // of the newest change; see [ValidToken]
	All         bool                // whether Rooms has all rooms of the user, without events, and all account data changed
	Rooms       map[string][]int64  // positions of the new events of each changed room
	AccountData map[string][]string // types of the changed account data of each room; of no room: global
}

var token = regexp.MustCompile(`^[0-9]{1,18}$`)

// ValidToken reports whether a text has the form of a token.
func ValidToken(text string) bool { return token.MatchString(text) }

type change struct {
	number   int64
	room     string
	position sql.NullInt64
	kind     sql.NullString
}

// Since returns what changed for a user's syncs. An empty token asks for all rooms.
func (s *Store) Since(ctx context.Context, user mxid.UserID, since string) (changes Changes, err error) {
	type bounds struct{ first, last int64 }
	kept, _, err := data.One(ctx, s.db, func(scan data.Scan) (b bounds, err error) { return b, scan(&b.first, &b.last) },
		`SELECT COALESCE((SELECT MIN(number) FROM changes), 1), COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'changes'), 0)`)
	if err != nil {
		return changes, err
	}
	seen, err := strconv.ParseInt(since, 10, 64)
	if err != nil || seen < kept.first-1 || seen > kept.last {
		return s.all(ctx, user, kept.last)
	}
	list, err := data.All(ctx, s.db, func(scan data.Scan) (c change, err error) { return c, scan(&c.number, &c.room, &c.position, &c.kind) },
		`SELECT number, room_id, position, type FROM changes WHERE user_id = ? AND number > ? ORDER BY number`, user, seen)
	changes = Changes{Token: since, Rooms: map[string][]int64{}, AccountData: map[string][]string{}}
	for _, c := range list {
		changes.Token = strconv.FormatInt(c.number, 10)
		switch events := changes.Rooms[c.room]; {
		case c.kind.Valid:
			changes.AccountData[c.room] = append(changes.AccountData[c.room], c.kind.String)
		case c.position.Valid && !slices.Contains(events, c.position.Int64):
			changes.Rooms[c.room] = append(events, c.position.Int64)
		default:
			changes.Rooms[c.room] = events
		}
	}
	return changes, err
}

// all returns all rooms of a user. The token is older than what it reads, so the next sync repeats a change during the
// call.
func (s *Store) all(ctx context.Context, user mxid.UserID, last int64) (Changes, error) {
	changes := Changes{Token: strconv.FormatInt(last, 10), All: true, Rooms: map[string][]int64{}}
	rooms, err := data.All(ctx, s.db, data.Value[string], `SELECT room_id FROM members WHERE user_id = ? AND membership IN (?, ?)`, user, Joined, Invited)
	for _, room := range rooms {
		changes.Rooms[room] = nil
	}
	return changes, err
}

// Timeline returns the newest visible events of a room, or the newest of the events at the given positions. Limited
// tells whether it left out older events.
func (s *Store) Timeline(ctx context.Context, room string, limit int, positions ...int64) (events []Event, limited bool, err error) {
	list, err := json.Marshal(positions)
	if err != nil {
		return nil, false, err
	}
	events, err = data.All(ctx, s.db, readEvent, `SELECT `+eventColumns+` FROM events WHERE room_id = ?1 AND is_shown
		AND (?2 = 0 OR position IN (SELECT value FROM json_each(?3))) ORDER BY position DESC LIMIT ?4`, room, len(positions), string(list), limit+1)
	limited = len(events) > limit
	events = events[:min(len(events), limit)]
	slices.Reverse(events)
	return events, limited, err
}
