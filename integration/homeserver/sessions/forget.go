package sessions

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
)

// forgetLists is the number of lists of users to forget: hashes whose fields are users. They have different slots. If
// the master of a user's list does not reply, another list has the user.
const forgetLists = 8

func (s *Sessions) forgetList(n int) string {
	return s.prefix + "forget:{" + strconv.Itoa(n%forgetLists) + "}"
}

// ForgetLater adds a user to [Sessions.ToForget].
func (s *Sessions) ForgetLater(ctx context.Context, user mxid.UserID) (err error) {
	sum := fnv.New32a()
	sum.Write([]byte(user))
	first := int(sum.Sum32() % forgetLists)
	for n := range forgetLists {
		err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
			return client.HSet(ctx, s.forgetList(first+n), string(user), "").Err()
		})
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

// ToForget returns the listed users that are deactivated. With an error, it returns the users whose masters reply.
func (s *Sessions) ToForget(ctx context.Context) (users []mxid.UserID, err error) {
	var names []string
	for n := range forgetLists {
		err = cmp.Or(err, s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
			some, err := client.HKeys(ctx, s.forgetList(n)).Result()
			names = append(names, some...)
			return err
		}))
	}
	if len(names) == 0 {
		return nil, err
	}
	slices.Sort(names)
	names = slices.Compact(names)
	deactivated := make([]*redis.BoolCmd, len(names))
	err = errors.Join(err, s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, name := range names {
				deactivated[i] = pipe.HExists(ctx, s.key(accountHash, mxid.UserID(name)), deactivatedField)
			}
			return nil
		})
		return err
	}))
	for i, reply := range deactivated {
		if reply.Val() { // otherwise the deactivation failed or is still running
			users = append(users, mxid.UserID(names[i]))
		}
	}
	return users, err
}

// Forgotten removes a user from [Sessions.ToForget]. After an error the user may be listed again, which has no effect.
func (s *Sessions) Forgotten(ctx context.Context, user mxid.UserID) (err error) {
	for n := range forgetLists {
		err = cmp.Or(err, s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
			return client.HDel(ctx, s.forgetList(n), string(user)).Err()
		}))
	}
	return err
}
