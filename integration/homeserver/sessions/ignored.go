package sessions

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
)

// IgnoredType is the account data type of [Ignored].
const IgnoredType = "m.ignored_user_list"

const ignoredField = "ignored"

// Ignored lists the users that a user ignores (Matrix specification, "Ignoring Users").
type Ignored struct {
	Users map[mxid.UserID]json.RawMessage `json:"ignored_users"`
}

// SetIgnored stores the JSON text of an [Ignored].
func (s *Store) SetIgnored(ctx context.Context, user mxid.UserID, text []byte) error {
	return s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		return client.HSet(ctx, s.key(accountHash, user), ignoredField, text).Err()
	})
}

// Ignored returns the stored JSON text of each user's [Ignored], empty for none. After an error, it lacks the users
// whose lists could not be read.
func (s *Store) Ignored(ctx context.Context, users ...mxid.UserID) (texts map[mxid.UserID]string, err error) {
	texts = map[mxid.UserID]string{}
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		replies := make([]*redis.StringCmd, len(users))
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, user := range users {
				replies[i] = pipe.HGet(ctx, s.key(accountHash, user), ignoredField)
			}
			return nil
		})
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		for i, reply := range replies {
			if text, failed := reply.Result(); failed == nil || errors.Is(failed, redis.Nil) {
				texts[users[i]] = text
			} else {
				err = failed
			}
		}
		return err
	})
	return texts, err
}

// WithoutIgnoring returns the users that do not ignore the sender. After an error, it lacks the users whose lists could
// not be read.
func (s *Store) WithoutIgnoring(ctx context.Context, users []mxid.UserID, other mxid.UserID) ([]mxid.UserID, error) {
	texts, err := s.Ignored(ctx, users...)
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
