package sessions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
)

// AccountData is account data of a user. Room is empty for global data.
type AccountData struct {
	Room, Type string
	Content    json.RawMessage
}

// maxAccountData bounds the account data of a user: the global types, and the types of each room.
const maxAccountData = 1000

// ErrTooMuchData refuses account data of a new type for a user who has too much.
var ErrTooMuchData = errors.New("host: the user has too much account data")

// dataField is the field of account data. Neither a room id nor a type has a NUL.
func dataField(room, kind string) string { return room + "\x00" + kind }

var setData = redis.NewScript(`
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 'too much' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 'ok'`)

// SetAccountData stores account data of a user. Errors: [ErrTooMuchData].
func (s *Store) SetAccountData(ctx context.Context, user mxid.UserID, data AccountData) error {
	answer, err := s.run(ctx, setData, user, []hash{dataHash}, dataField(data.Room, data.Type), string(data.Content), maxAccountData)
	if err == nil && answer != "ok" {
		err = ErrTooMuchData
	}
	return err
}

// AccountData returns the account data of a user, ordered by room and type.
func (s *Store) AccountData(ctx context.Context, user mxid.UserID) (all []AccountData, err error) {
	var fields map[string]string
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		fields, err = client.HGetAll(ctx, s.key(dataHash, user)).Result()
		return err
	})
	for field, content := range fields {
		room, kind, _ := strings.Cut(field, "\x00")
		all = append(all, AccountData{room, kind, json.RawMessage(content)})
	}
	slices.SortFunc(all, func(a, b AccountData) int {
		return cmp.Or(strings.Compare(a.Room, b.Room), strings.Compare(a.Type, b.Type))
	})
	return all, err
}

// AccountDataOf returns one content of a user's account data, empty for none.
func (s *Store) AccountDataOf(ctx context.Context, user mxid.UserID, room, kind string) (content string, err error) {
	contents, err := s.accountDataOf(ctx, []mxid.UserID{user}, dataField(room, kind))
	return contents[user], err
}

// accountDataOf returns a field of many users. After an error, it lacks the users whose data could not be read.
func (s *Store) accountDataOf(ctx context.Context, users []mxid.UserID, field string) (contents map[mxid.UserID]string, err error) {
	contents = map[mxid.UserID]string{}
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		replies := make([]*redis.StringCmd, len(users))
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, user := range users {
				replies[i] = pipe.HGet(ctx, s.key(dataHash, user), field)
			}
			return nil
		})
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		for i, reply := range replies {
			if text, failed := reply.Result(); failed == nil || errors.Is(failed, redis.Nil) {
				contents[users[i]] = text
			} else {
				err = failed
			}
		}
		return err
	})
	return contents, err
}

// IgnoredType is the account data type of [Ignored].
const IgnoredType = "m.ignored_user_list"

// Ignored lists the users that a user ignores (Matrix specification, "Ignoring Users").
type Ignored struct {
	Users map[mxid.UserID]json.RawMessage `json:"ignored_users"`
}

// WithoutIgnoring returns the users that do not ignore the sender. After an error, it lacks the users whose lists could
// not be read.
func (s *Store) WithoutIgnoring(ctx context.Context, users []mxid.UserID, other mxid.UserID) ([]mxid.UserID, error) {
	texts, err := s.accountDataOf(ctx, users, dataField("", IgnoredType))
	var others []mxid.UserID
	for _, user := range users {
		text, isRead := texts[user]
		var list Ignored
		_ = json.Unmarshal([]byte(text), &list) // no list ignores no user
		if _, ignores := list.Users[other]; isRead && !ignores {
			others = append(others, user)
		}
	}
	return others, err
}
