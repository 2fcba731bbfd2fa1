// Package rooms stores the demo host's rooms: the newest events of each room with their
// positions and threads, the members, and the changes for each user's /sync.
package rooms

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	keptEvents  = 1000 // in each room, some hundred more, and events in the outbox
	removeEvery = 100  // events of a room on average, old events are removed
	maxMembers  = 2000 // that events of a room have named
	maxHops     = 3    // from an event to the root of its thread (Matrix specification, "Threading")
)

// MaxIDBytes limits room ids, event ids, types and state keys (Matrix specification, "Size limits").
const MaxIDBytes = 255

// Store has the rooms. It is safe for concurrent use. All errors but [ErrTooManyMembers] are [module.Unavailable].
type Store struct{ db *data.DB }

// New returns a store.
func New(db *data.DB) *Store { return &Store{db} }

// ErrTooManyMembers refuses an event that would give its room too many members.
var ErrTooManyMembers = fault.New(fault.InvalidParam, "The room has too many members.")

// Event is an event of a room.
type Event struct {
	Room, ID string
	Position int64  // above 0; a later event has a greater position
	JSON     string // as clients see it
	Parent   string // id of the event that this event relates to; empty: none
	Thread   string // the event id of the root, or [module.MainThread]
	Hops     int    // relations from the event to the root
	Power    string // the power levels at the event, as JSON; empty: unknown
	Redacted bool
}

const eventColumns = `room_id, event_id, position, json, parent, thread, hops, power, is_redacted`

func readEvent(scan data.Scan) (e Event, err error) {
	err = scan(&e.Room, &e.ID, &e.Position, &e.JSON, &e.Parent, &e.Thread, &e.Hops, &e.Power, &e.Redacted)
	return e, err
}

// Membership is a user's membership in a room, as the specification names it.
type Membership string

// The memberships. A user who is neither invited nor joined has left.
const (
	Joined  Membership = "join"
	Invited Membership = "invite"
	Left    Membership = "leave"
)

// Members has the joined and invited users of a room. A membership event has precedence over the list in the newest
// message.
type Members map[mxid.UserID]Membership

// Users returns the users in order: all, or only users with the given memberships.
func (m Members) Users(only ...Membership) (users []mxid.UserID) {
	for user, is := range m {
		if len(only) == 0 || slices.Contains(only, is) {
			users = append(users, user)
		}
	}
	slices.Sort(users)
	return users
}

// Change is what an event changes in its room besides the timeline.
type Change struct {
	Members []mxid.UserID // the new list of members, from an event that is no membership event; nil: unchanged
	User    mxid.UserID   // the user whose membership the event changes; empty: none
	Is      Membership
	Name    string // the new name of the room; empty: unchanged
}

// Add adds an event with the next position, and finds its thread. Also, if not nil, is called in the transaction. If the room
// has an event with the same id, Add returns the earlier event and changes nothing. An error of also is returned as
// [module.Unavailable].
func (s *Store) Add(ctx context.Context, e Event, change Change, also func(ctx context.Context, tx *data.Tx, e Event) error) (Event, error) {
	err := s.db.Write(ctx, func(ctx context.Context, tx *data.Tx) error {
		earlier, found, err := event(ctx, tx, e.Room, e.ID)
		if err != nil {
			return err
		}
		if found {
			e = earlier
			return nil
		}
		if err := changeRoom(ctx, tx, e.Room, change); err != nil {
			return err
		}
		if e, err = addEvent(ctx, tx, e); err != nil {
			return err
		}
		if also == nil {
			return nil
		}
		return also(ctx, tx, e)
	})
	return e, err
}

// changeRoom stores a room, its name and its members. Most events change nothing of it.
func changeRoom(ctx context.Context, tx *data.Tx, room string, change Change) error {
	list, digest := "", ""
	if change.Members != nil {
		listed, err := json.Marshal(change.Members)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(listed)
		list, digest = string(listed), hex.EncodeToString(sum[:])
	}
	// RETURNING would make a temporary table.
	changed, err := tx.ExecContext(ctx, `INSERT INTO rooms (room_id, name, members_sha256) VALUES (?1, ?2, ?3)
		ON CONFLICT DO UPDATE SET name = IIF(?2 = '', name, ?2), members_sha256 = IIF(?3 = '', members_sha256, ?3)
		WHERE ?2 NOT IN ('', name) OR ?3 NOT IN ('', members_sha256)`, room, change.Name, digest)
	if err != nil {
		return err
	}
	if change.User != "" {
		if err := setMember(ctx, tx, room, change.User, change.Is); err != nil {
			return err
		}
	}
	if n, err := changed.RowsAffected(); err != nil || n == 0 || list == "" {
		return err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM members WHERE room_id = ? AND NOT by_event
		AND user_id NOT IN (SELECT value FROM json_each(?))`, room, list); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO members SELECT ?, value, ?, 0 FROM json_each(?) WHERE true ON CONFLICT DO NOTHING`, room, Joined, list)
	return err
}

// setMember stores a membership from an event, which has precedence over lists of members.
func setMember(ctx context.Context, tx *data.Tx, room string, user mxid.UserID, is Membership) error {
	stored, err := tx.ExecContext(ctx, `INSERT INTO members SELECT ?1, ?2, ?3, 1 WHERE
		(SELECT COUNT(*) FROM members WHERE room_id = ?1 AND by_event AND user_id <> ?2) < ?4
		ON CONFLICT DO UPDATE SET membership = excluded.membership, by_event = 1`, room, user, is, maxMembers)
	if err != nil {
		return err
	}
	if n, err := stored.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return ErrTooManyMembers
}

// addEvent stores an event, and sometimes removes old events of its room.
func addEvent(ctx context.Context, tx *data.Tx, e Event) (Event, error) {
	var err error
	relation := RelationOf(e.JSON)
	e.Parent = relation.Parent
	if e.Thread, e.Hops, err = threadOf(ctx, tx, e.Room, relation); err != nil {
		return e, err
	}
	added, err := tx.ExecContext(ctx, `INSERT INTO events (room_id, event_id, json, parent, thread, hops, power)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, e.Room, e.ID, e.JSON, e.Parent, e.Thread, e.Hops, e.Power)
	if err != nil {
		return e, err
	}
	if e.Position, err = added.LastInsertId(); err != nil || rand.IntN(removeEvery) > 0 {
		return e, err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM events WHERE room_id = ?1 AND position NOT IN (SELECT id FROM push_outbox)
		AND position <= (SELECT position FROM events WHERE room_id = ?1 ORDER BY position DESC LIMIT 1 OFFSET ?2)`, e.Room, keptEvents)
	return e, err
}

// ValidID reports whether a text is a room id or an event id, which begins with sigil (Matrix specification,
// appendices, "Opaque identifiers").
func ValidID(text, sigil string) bool {
	return strings.HasPrefix(text, sigil) && len(text) <= MaxIDBytes && utf8.ValidString(text) && !strings.Contains(text, "\x00")
}

// Relation is how an event relates to an earlier event.
type Relation struct{ Type, Parent string }

// RelationOf returns the relation of an event as clients see it. An invalid relation counts as none, which is the zero
// Relation: any client may send one, and it must not break what the others read.
func RelationOf(event string) (r Relation) {
	relation := member(member(json.RawMessage(event), "content"), "m.relates_to")
	// A member that is no text stays empty.
	_ = json.Unmarshal(member(relation, "rel_type"), &r.Type)
	_ = json.Unmarshal(member(relation, "event_id"), &r.Parent)
	if r.Type == "" || !ValidID(r.Parent, "$") {
		return Relation{}
	}
	return r
}

// member returns a member of a JSON object, and nothing for any other value. Unlike the fields of a struct, names
// are compared with their case.
func member(object json.RawMessage, name string) json.RawMessage {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(object, &members)
	return members[name]
}

// threadOf returns the thread of an event. In a thread, an event's parent is the root. Any other event is in the thread
// of its parent, unless it is too many relations from the root.
func threadOf(ctx context.Context, from data.Source, room string, r Relation) (thread string, hops int, err error) {
	switch r.Type {
	case "":
		return module.MainThread, 0, nil
	case "m.thread":
		return r.Parent, 1, nil
	}
	earlier, found, err := event(ctx, from, room, r.Parent)
	if err != nil || !found || earlier.Thread == module.MainThread || earlier.Hops >= maxHops {
		return module.MainThread, 0, err
	}
	return earlier.Thread, earlier.Hops + 1, nil
}

// Event returns an event of a room. It does not find old events.
func (s *Store) Event(ctx context.Context, room, id string) (e Event, found bool, err error) {
	return event(ctx, s.db, room, id)
}

func event(ctx context.Context, from data.Source, room, id string) (e Event, found bool, err error) {
	return data.One(ctx, from, readEvent, `SELECT `+eventColumns+` FROM events WHERE room_id = ? AND event_id = ?`, room, id)
}

// EventAt returns the event at a position. It does not find old events.
func (s *Store) EventAt(ctx context.Context, position int64) (e Event, found bool, err error) {
	return data.One(ctx, s.db, readEvent, `SELECT `+eventColumns+` FROM events WHERE position = ?`, position)
}

// EventsFor returns the events at some positions, by position. It leaves out old events, redacted ones, and events of
// rooms that the user is not in.
func (s *Store) EventsFor(ctx context.Context, user mxid.UserID, positions []int64) (map[int64]Event, error) {
	list, err := json.Marshal(positions)
	if err != nil {
		return nil, err
	}
	all, err := data.All(ctx, s.db, readEvent, `SELECT `+eventColumns+` FROM events JOIN members USING (room_id)
		WHERE position IN (SELECT value FROM json_each(?)) AND NOT is_redacted AND user_id = ? AND membership IN (?, ?)`,
		string(list), user, Joined, Invited)
	byPosition := map[int64]Event{}
	for _, e := range all {
		byPosition[e.Position] = e
	}
	return byPosition, err
}

// Leads reports whether at most three relations of any kind lead from an event to a root.
func (s *Store) Leads(ctx context.Context, e Event, root string) (bool, error) {
	for range maxHops {
		if e.Parent == "" || e.Parent == root {
			return e.Parent != "", nil
		}
		var found bool
		var err error
		if e, found, err = s.Event(ctx, e.Room, e.Parent); err != nil || !found {
			return false, err
		}
	}
	return false, nil
}

// Room is the name and the members of a room.
type Room struct {
	Name     string
	Members  Members
	Ignoring []mxid.UserID // the members who ignore a sender
}

// Room returns a room, and which members ignore a sender. A room without members has no name.
func (s *Store) Room(ctx context.Context, id string, sender mxid.UserID) (Room, error) {
	room := Room{Members: Members{}}
	_, err := data.All(ctx, s.db, func(scan data.Scan) (user mxid.UserID, err error) {
		var is Membership
		var ignores bool
		err = scan(&room.Name, &user, &is, &ignores)
		if room.Members[user] = is; ignores {
			room.Ignoring = append(room.Ignoring, user)
		}
		return user, err
	}, `SELECT name, user_id, membership, EXISTS (SELECT 1 FROM ignored_users WHERE ignored = ?2 AND ignored_users.user_id = members.user_id)
		FROM members JOIN rooms USING (room_id) WHERE room_id = ?1 AND membership IN (?3, ?4)`, id, sender, Joined, Invited)
	return room, err
}

// Redact removes the content of an event, except for a membership (Matrix specification, "Redactions"), takes the event
// from the outbox, and adds the redaction. The event keeps its relation, which the threads of other events need.
func (s *Store) Redact(ctx context.Context, e, redaction Event) (Event, error) {
	return s.Add(ctx, redaction, Change{}, func(ctx context.Context, tx *data.Tx, added Event) error {
		text, err := withoutContent(e.JSON, added.JSON)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE events SET json = ?, is_redacted = 1 WHERE position = ? AND NOT is_redacted`, text, e.Position); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM push_outbox WHERE id = ?`, e.Position)
		return err
	})
}

func withoutContent(text, because string) (string, error) {
	var e map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return "", err
	}
	var kept struct {
		Membership string `json:"membership,omitempty"`
	}
	_ = json.Unmarshal(e["content"], &kept) // invalid content has no membership
	content, err := json.Marshal(kept)
	if err != nil {
		return "", err
	}
	e["content"] = content
	e["unsigned"], err = json.Marshal(map[string]json.RawMessage{"redacted_because": json.RawMessage(because)})
	if err != nil {
		return "", err
	}
	redacted, err := json.Marshal(e)
	return string(redacted), err
}
