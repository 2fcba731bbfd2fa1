// Package rooms stores the demo host's rooms in Redis: the newest events of each room with
// their positions and threads, the members, and a stream of changes for each user's /sync.
package rooms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	keptEvents = 1000 // in each room, and up to a hundred more
	maxFields  = 2000 // of a room's hash: one for each member that an event named, and a few more
	maxHops    = 3    // from an event to the root of its thread (Matrix specification, "Threading")
)

// MaxIDBytes limits room ids, event ids, types and state keys (Matrix specification, "Size limits").
const MaxIDBytes = 255

// Store has the rooms. It is safe for concurrent use, and all hosts share them.
type Store struct {
	client  redis.UniversalClient
	prefix  string
	timeout time.Duration
	listed  listed
}

// New returns a store whose keys begin with keyPrefix. An operation takes no longer than
// timeout. All errors but [ErrTooManyMembers] are [module.Unavailable].
func New(client redis.UniversalClient, keyPrefix string, timeout time.Duration) *Store {
	return &Store{client: client, prefix: keyPrefix + "demo:", timeout: timeout}
}

// ErrTooManyMembers refuses an event that would give its room too many members.
var ErrTooManyMembers = errors.New("host: the room has too many members")

// Event is an event of a room.
type Event struct {
	ID       string
	Position int64  `json:"-"` // above 0; a later event of the room has a greater position
	JSON     string // as clients see it
	Parent   string // id of the event that this event relates to; empty: none
	Thread   string // the event id of the root, or [module.MainThread]
	Hops     int    // relations from the event to the root
	Redacted bool
}

// Membership is a user's membership in a room, as the specification names it.
type Membership string

// The memberships. A user who is neither invited nor joined has left.
const (
	Joined  Membership = "join"
	Invited Membership = "invite"
	Left    Membership = "leave"
)

// Members has the joined and invited users of a room.
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

func (s *Store) roomKeys(room string) []string {
	tag := ":{" + room + "}"
	return []string{s.prefix + "room" + tag, s.prefix + "events" + tag, s.prefix + "order" + tag, s.prefix + "shown" + tag}
}

func (s *Store) do(ctx context.Context, operation func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := operation(ctx)
	if left := new(module.LeftError); err == nil || errors.As(err, &left) {
		return err
	}
	return module.Unavailable(fmt.Errorf("host: %w", err))
}

// addEvent stores an event with the next position of its room, unless the room has an event with the same id, and its
// row in the outbox. It returns the fields of the room and the stored event after its position. If the room would have
// too many members, it returns an empty text instead. KEYS: the room, the events, the event ids by position (to remove
// the oldest events, a hundred at a time), the ids of the visible events, and the rows. ARGV: the event's id and text,
// how many events stay, the new list of members or nothing, the user whose membership changes or nothing, the
// membership, the most fields of a room, the row or nothing, and the room's new name or nothing. An event that has a row
// keeps it.
var addEvent = redis.NewScript(`
local old = redis.call('HGET', KEYS[2], ARGV[1])
local function row(position)
	if ARGV[8] ~= '' and redis.call('HEXISTS', KEYS[5], ARGV[1]) == 0 then
		redis.call('HSET', KEYS[5], ARGV[1], redis.call('TIME')[1] .. ' ' .. position .. ' ' .. ARGV[8])
	end
end
if old then
	row(string.match(old, '^%d+'))
	return {old, redis.call('HGETALL', KEYS[1])}
end
if ARGV[5] ~= '' then
	if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[7]) and redis.call('HEXISTS', KEYS[1], 'is:' .. ARGV[5]) == 0 then return {''} end
	redis.call('HSET', KEYS[1], 'is:' .. ARGV[5], ARGV[6])
end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'members', ARGV[4]) end
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'name', ARGV[9]) end
local position = redis.call('HINCRBY', KEYS[1], 'position', 1)
row(position)
redis.call('HSET', KEYS[2], ARGV[1], position .. ' ' .. ARGV[2])
redis.call('ZADD', KEYS[3], position, ARGV[1])
if position % 100 == 0 then
	for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1 - tonumber(ARGV[3]))) do
		redis.call('HDEL', KEYS[2], id)
		redis.call('ZREM', KEYS[3], id)
		redis.call('ZREM', KEYS[4], id)
	end
end
return {position .. ' ' .. ARGV[2], redis.call('HGETALL', KEYS[1])}`)

// Add adds an event and finds its thread. It returns the event with its position, and the members of the room. If the
// room has an event with the same id, Add returns the earlier event and does not change the room. A row that is not
// empty is in the outbox from then on; see [Store.Rows].
func (s *Store) Add(ctx context.Context, room string, e Event, change Change, row string) (Event, Members, error) {
	if row != "" {
		if err := s.list(ctx, room); err != nil {
			return Event{}, nil, err
		}
	}
	var err error
	relation := RelationOf(e.JSON)
	e.Parent = relation.Parent
	if e.Thread, e.Hops, err = s.threadOf(ctx, room, relation); err != nil {
		return Event{}, nil, err
	}
	text, err := json.Marshal(e)
	if err != nil {
		return Event{}, nil, err
	}
	members := ""
	if change.Members != nil {
		list, err := json.Marshal(change.Members)
		if err != nil {
			return Event{}, nil, err
		}
		members = string(list)
	}
	var reply []any
	err = s.do(ctx, func(ctx context.Context) (err error) {
		reply, err = addEvent.Run(ctx, s.client, append(s.roomKeys(room), s.rowsKey(room)), e.ID, text, keptEvents, members,
			string(change.User), string(change.Is), maxFields, row, change.Name).Slice()
		return err
	})
	switch {
	case err != nil:
		return Event{}, nil, err
	case len(reply) < 2:
		return Event{}, nil, ErrTooManyMembers
	}
	added, err := readEvent(fmt.Sprint(reply[0]))
	return added, readMembers(pairs(reply[1])), err
}

// pairs converts the reply to HGETALL in a script to a map.
func pairs(reply any) map[string]string {
	list, _ := reply.([]any)
	fields := map[string]string{}
	for i := 1; i < len(list); i += 2 {
		fields[fmt.Sprint(list[i-1])] = fmt.Sprint(list[i])
	}
	return fields
}

func readEvent(stored string) (e Event, err error) {
	position, text, _ := strings.Cut(stored, " ")
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return Event{}, fmt.Errorf("host: a stored event: %w", err)
	}
	e.Position, err = strconv.ParseInt(position, 10, 64)
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
func (s *Store) threadOf(ctx context.Context, room string, r Relation) (thread string, hops int, err error) {
	switch r.Type {
	case "":
		return module.MainThread, 0, nil
	case "m.thread":
		return r.Parent, 1, nil
	}
	earlier, found, err := s.Event(ctx, room, r.Parent)
	if err != nil || !found || earlier.Thread == module.MainThread || earlier.Hops >= maxHops {
		return module.MainThread, 0, err
	}
	return earlier.Thread, earlier.Hops + 1, nil
}

// Event returns an event of a room. It does not find old events.
func (s *Store) Event(ctx context.Context, room, id string) (e Event, found bool, err error) {
	all, err := s.events(ctx, room, id)
	if err != nil || len(all) == 0 {
		return Event{}, false, err
	}
	return all[0], true, nil
}

// EventAt returns the event at a position. It does not find old events.
func (s *Store) EventAt(ctx context.Context, room string, position int64) (e Event, found bool, err error) {
	at := strconv.FormatInt(position, 10)
	var ids []string
	err = s.do(ctx, func(ctx context.Context) (err error) {
		ids, err = s.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: s.roomKeys(room)[2], Start: at, Stop: at, ByScore: true}).Result()
		return err
	})
	if err != nil || len(ids) == 0 {
		return Event{}, false, err
	}
	return s.Event(ctx, room, ids[0])
}

// events returns the room's events with the given ids, in the order of positions. It leaves out ids that the room
// lacks.
func (s *Store) events(ctx context.Context, room string, ids ...string) (all []Event, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var values []any
	err = s.do(ctx, func(ctx context.Context) (err error) {
		values, err = s.client.HMGet(ctx, s.roomKeys(room)[1], ids...).Result()
		return err
	})
	for _, value := range values {
		if text, found := value.(string); found {
			e, err := readEvent(text)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b Event) int { return int(a.Position - b.Position) })
	return all, err
}

// Leads reports whether at most three relations of any kind lead from an event to a root.
func (s *Store) Leads(ctx context.Context, room string, e Event, root string) (bool, error) {
	for range maxHops {
		if e.Parent == "" || e.Parent == root {
			return e.Parent != "", nil
		}
		var found bool
		var err error
		if e, found, err = s.Event(ctx, room, e.Parent); err != nil || !found {
			return false, err
		}
	}
	return false, nil
}

// Members returns the members of a room. A membership event has precedence over the list in the newest message.
func (s *Store) Members(ctx context.Context, room string) (Members, error) {
	members, _, err := s.State(ctx, room)
	return members, err
}

// State returns the members of a room and its name, empty for none.
func (s *Store) State(ctx context.Context, room string) (members Members, name string, err error) {
	var fields map[string]string
	err = s.do(ctx, func(ctx context.Context) (err error) {
		fields, err = s.client.HGetAll(ctx, s.roomKeys(room)[0]).Result()
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return readMembers(fields), fields["name"], nil
}

func readMembers(fields map[string]string) Members {
	all := Members{}
	var listed []mxid.UserID
	_ = json.Unmarshal([]byte(fields["members"]), &listed) // no list before the first message
	for _, user := range listed {
		all[user] = Joined
	}
	for field, is := range fields {
		if user, found := strings.CutPrefix(field, "is:"); found {
			all[mxid.UserID(user)] = Membership(is)
		}
	}
	maps.DeleteFunc(all, func(_ mxid.UserID, is Membership) bool { return is != Joined && is != Invited })
	return all
}

var replaceEvent = redis.NewScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1`)

// Redact removes the content of an event, except for a membership (Matrix specification, "Redactions"). The event keeps
// its relation, which the threads of other events need.
func (s *Store) Redact(ctx context.Context, room string, e Event, because string) error {
	before, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if e.Redacted {
		return nil
	}
	e.JSON, err = withoutContent(e.JSON, because)
	if err != nil {
		return err
	}
	e.Redacted = true
	after, err := json.Marshal(e)
	if err != nil {
		return err
	}
	position := strconv.FormatInt(e.Position, 10) + " "
	return s.do(ctx, func(ctx context.Context) error {
		return replaceEvent.Run(ctx, s.client, s.roomKeys(room)[1:2], e.ID, position+string(before), position+string(after)).Err()
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
