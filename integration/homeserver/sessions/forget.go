package sessions

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
)

// toForget is a hash whose fields are users.
const toForget = "forget"

// ForgetLater adds a user to [Sessions.ToForget].
func (s *Sessions) ForgetLater(ctx context.Context, user mxid.UserID) error {
	return s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		return client.HSet(ctx, s.prefix+toForget, string(user), "").Err()
	})
}

// ToForget returns the listed users that are deactivated.
func (s *Sessions) ToForget(ctx context.Context) (users []mxid.UserID, err error) {
	var names []string
	var deactivated []*redis.BoolCmd
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		if names, err = client.HKeys(ctx, s.prefix+toForget).Result(); err != nil || len(names) == 0 {
			return err
		}
		_, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, name := range names {
				deactivated = append(deactivated, pipe.HExists(ctx, s.key(accountHash, mxid.UserID(name)), deactivatedField))
			}
			return nil
		})
		return err
	})
	for i, reply := range deactivated {
		if err == nil && reply.Val() { // otherwise the deactivation failed or is still running
			users = append(users, mxid.UserID(names[i]))
		}
	}
	return users, err
}

// Forgotten removes a user from [Sessions.ToForget].
func (s *Sessions) Forgotten(ctx context.Context, user mxid.UserID) error {
	return s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		return client.HDel(ctx, s.prefix+toForget, string(user)).Err()
	})
}
