package sessions

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// maxFilters is how many filters a user can store.
const maxFilters = 100

// addFilter stores a filter (KEYS[2]) of an account (KEYS[1]).
var addFilter = redis.NewScript(`
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
	return 'deactivated'
end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then
	return 'full'
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 'ok'
`)

// AddFilter stores a user's filter under an id. Errors: [ErrTooManyFilters],
// [module.ErrLoggedOut] for a deactivated user, [module.Unavailable].
func (s *Store) AddFilter(ctx context.Context, user mxid.UserID, id string, text []byte) error {
	answer, err := s.run(ctx, addFilter, user, []hash{accountHash, filtersHash}, deactivatedField, id, text, maxFilters)
	switch {
	case err != nil:
		return err
	case answer == "deactivated":
		return module.ErrLoggedOut
	case answer == "full":
		return ErrTooManyFilters
	}
	return nil
}

// Filter returns the text of a filter; found is false for an unknown id.
func (s *Store) Filter(ctx context.Context, user mxid.UserID, id string) (text []byte, found bool, err error) {
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		text, err = client.HGet(ctx, s.key(filtersHash, user), id).Bytes()
		if found = err == nil; errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	return text, found, err
}
