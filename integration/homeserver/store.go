package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// store is the host's own part of the Redis: a few hashes for each user, which
// all instances share. They stand beside the module's keys, under the same
// prefix, and all of a user in one slot.
type store struct {
	redis   redis.UniversalClient
	prefix  string
	timeout time.Duration // of an operation
}

func newStore(cfg config, client redis.UniversalClient) *store {
	return &store{client, cfg.module.KeyPrefix + "demo:", cfg.module.OperationTimeout}
}

// accountKey is that of the hash with what is known of a user.
func (s *store) accountKey(user mxid.UserID) string { return s.key("account", user) }

// devicesKey is that of the hash with the sessions of a user, by device.
func (s *store) devicesKey(user mxid.UserID) string { return s.key("devices", user) }

// filtersKey is that of the hash with the filters of a user, by id.
func (s *store) filtersKey(user mxid.UserID) string { return s.key("filters", user) }

func (s *store) key(name string, user mxid.UserID) string {
	return s.prefix + name + ":{" + string(user) + "}"
}

// ask does what needs Redis, in the time that an operation may take.
func (s *store) ask(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return unavailable(do(ctx))
}

// change reads and writes atomically: again from the start when one of the keys
// has changed in between.
func (s *store) change(ctx context.Context, do func(ctx context.Context, tx *redis.Tx) error, keys ...string) error {
	return s.ask(ctx, func(ctx context.Context) error {
		for {
			err := s.redis.Watch(ctx, func(tx *redis.Tx) error { return do(ctx, tx) }, keys...)
			if !errors.Is(err, redis.TxFailedErr) {
				return err
			}
		}
	})
}

// unavailable makes an error of Redis one that is answered 503. Refusals stay
// what they are.
func unavailable(err error) error {
	var refused *matrixError
	var fault *fault.Error
	if err == nil || errors.As(err, &refused) || errors.As(err, &fault) {
		return err
	}
	return module.Unavailable(fmt.Errorf("host: %w", err))
}
