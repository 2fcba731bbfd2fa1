package rooms

import (
	"context"
	"regexp"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// keptChanges is the maximum number of changes in a user's stream. A sync that has missed more changes gets all rooms.
const keptChanges = 1000

func (s *Store) userKeys(user mxid.UserID) (stream, rooms string) {
	return s.prefix + "stream:{" + string(user) + "}", s.prefix + "rooms:{" + string(user) + "}"
}

// Show makes an event visible to the syncs of users. After a second call for an event, a sync may get the event again. If
// the masters of some users do not reply, the error is a [module.LeftError].
func (s *Store) Show(ctx context.Context, room string, e Event, users []mxid.UserID) error {
	return s.do(ctx, func(ctx context.Context) error {
		shown := s.roomKeys(room)[3]
		if err := s.client.ZAdd(ctx, shown, redis.Z{Score: float64(e.Position), Member: e.ID}).Err(); err != nil {
			return err
		}
		return s.announce(ctx, room, e.ID, users)
	})
}

// Changed tells the syncs of users that the counts of a room changed.
func (s *Store) Changed(ctx context.Context, room string, users ...mxid.UserID) error {
	return s.do(ctx, func(ctx context.Context) error { return s.announce(ctx, room, "", users) })
}

func (s *Store) announce(ctx context.Context, room, event string, users []mxid.UserID) error {
	replies := make([]*redis.StringCmd, len(users))
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, user := range users {
			stream, rooms := s.userKeys(user)
			p.HSet(ctx, rooms, room, "")
			replies[i] = p.XAdd(ctx, &redis.XAddArgs{Stream: stream, MaxLen: keptChanges, Approx: true, Values: []any{"room", room, "event", event}})
		}
		return nil
	})
	left := &module.LeftError{Reasons: []error{module.Unavailable(err)}}
	for i, reply := range replies {
		if reply.Err() != nil {
			left.Users = append(left.Users, users[i])
		}
	}
	if len(left.Users) == 0 {
		return err
	}
	slices.Sort(left.Users)
	return left
}

// AccountDataChanged tells the syncs of a user that account data of a type changed: of a room, or global if room is
// empty.
func (s *Store) AccountDataChanged(ctx context.Context, user mxid.UserID, room, kind string) error {
	stream, _ := s.userKeys(user)
	values := []any{"account_data", kind, "of", room}
	return s.do(ctx, func(ctx context.Context) error {
		return s.client.XAdd(ctx, &redis.XAddArgs{Stream: stream, MaxLen: keptChanges, Approx: true, Values: values}).Err()
	})
}

// ForgetUser removes a user's stream, list of rooms and receipts. The user stays a member of rooms.
func (s *Store) ForgetUser(ctx context.Context, user mxid.UserID) error {
	stream, rooms := s.userKeys(user)
	return s.do(ctx, func(ctx context.Context) error { return s.client.Del(ctx, stream, rooms, s.receiptsKey(user)).Err() })
}

// Changes are a user's changes since a token.
type Changes struct {
	Token       string              // of the newest change; see [ValidToken]
	All         bool                // whether Rooms has all rooms that the user was ever in, without events, and all account data changed
	Rooms       map[string][]string // ids of the new events of each changed room
	AccountData map[string][]string // types of the changed account data of each room; of no room: global
}

// start is the token before any change.
const start = "0-0"

var token = regexp.MustCompile(`^[0-9]{1,18}-[0-9]{1,18}$`)

// ValidToken reports whether a text has the form of a token.
func ValidToken(text string) bool { return token.MatchString(text) }

// Since returns what changed for a user's syncs. An empty token asks for all rooms.
func (s *Store) Since(ctx context.Context, user mxid.UserID, since string) (changes Changes, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		var lost bool
		if since != "" {
			if changes, lost, err = s.since(ctx, user, since); err != nil || !lost {
				return err
			}
		}
		changes, err = s.all(ctx, user)
		return err
	})
	return changes, err
}

// since reads the changes after a token. Lost is true if changes after the token may no longer be in the stream.
func (s *Store) since(ctx context.Context, user mxid.UserID, since string) (changes Changes, lost bool, err error) {
	stream, _ := s.userKeys(user)
	entries, err := s.client.XRange(ctx, stream, since, "+").Result()
	if err != nil {
		return changes, false, err
	}
	if since != start && (len(entries) == 0 || entries[0].ID != since) {
		return changes, true, nil
	}
	changes = Changes{Token: since, Rooms: map[string][]string{}, AccountData: map[string][]string{}}
	for _, entry := range entries {
		if entry.ID == since {
			continue
		}
		changes.Token = entry.ID
		if kind, found := entry.Values["account_data"].(string); found {
			of, _ := entry.Values["of"].(string)
			changes.AccountData[of] = append(changes.AccountData[of], kind)
			continue
		}
		room, _ := entry.Values["room"].(string)
		event, _ := entry.Values["event"].(string)
		events := changes.Rooms[room]
		if event != "" && !slices.Contains(events, event) {
			events = append(events, event)
		}
		changes.Rooms[room] = events
	}
	return changes, since == start && len(entries) >= keptChanges, nil
}

// all returns all rooms of a user. It reads the token first, so the next sync repeats a change during the call.
func (s *Store) all(ctx context.Context, user mxid.UserID) (changes Changes, err error) {
	stream, rooms := s.userKeys(user)
	changes = Changes{Token: start, All: true, Rooms: map[string][]string{}}
	newest, err := s.client.XRevRangeN(ctx, stream, "+", "-", 1).Result()
	if err != nil {
		return changes, err
	}
	if len(newest) > 0 {
		changes.Token = newest[0].ID
	}
	list, err := s.client.HKeys(ctx, rooms).Result()
	for _, room := range list {
		changes.Rooms[room] = nil
	}
	return changes, err
}

// Timeline returns the newest visible events of a room, or the newest of the events with the given ids. Limited tells
// whether it left out older events.
func (s *Store) Timeline(ctx context.Context, room string, limit int, ids ...string) (events []Event, limited bool, err error) {
	if len(ids) == 0 {
		err = s.do(ctx, func(ctx context.Context) (err error) {
			ids, err = s.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: s.roomKeys(room)[3], Start: 0, Stop: limit, Rev: true}).Result()
			return err
		})
		if err != nil {
			return nil, false, err
		}
	}
	events, err = s.events(ctx, room, ids...)
	limited = len(events) > limit
	return events[max(0, len(events)-limit):], limited, err
}
