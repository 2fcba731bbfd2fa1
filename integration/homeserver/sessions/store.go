package sessions

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// Store is the host's own data in Redis: a few hashes for each user, which all instances
// share. The keys have the prefix of the module's keys. All hashes of a user are in one slot,
// so that a script can use them together.
type Store struct {
	client  redis.UniversalClient
	prefix  string
	timeout time.Duration
}

// NewStore returns a store whose keys begin with keyPrefix. The caller closes the client. An
// operation takes no longer than timeout.
func NewStore(client redis.UniversalClient, keyPrefix string, timeout time.Duration) *Store {
	return &Store{client, keyPrefix + "demo:", timeout}
}

type hash string

const (
	accountHash hash = "account" // the account, by field
	devicesHash hash = "devices" // the sessions, by device
	dataHash    hash = "data"    // account data, by room and type
)

func (s *Store) key(name hash, user mxid.UserID) string {
	return s.prefix + string(name) + ":{" + string(user) + "}"
}

// do runs an operation on Redis within the timeout. Any error is [module.Unavailable].
func (s *Store) do(ctx context.Context, operation func(ctx context.Context, client redis.UniversalClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := operation(ctx, s.client); err != nil {
		return module.Unavailable(fmt.Errorf("host: %w", err))
	}
	return nil
}

func (s *Store) run(ctx context.Context, script *redis.Script, user mxid.UserID, hashes []hash, args ...any) (answer string, err error) {
	keys := make([]string, len(hashes))
	for i, name := range hashes {
		keys[i] = s.key(name, user)
	}
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		answer, err = script.Run(ctx, client, keys, args...).Text()
		return err
	})
	return answer, err
}
