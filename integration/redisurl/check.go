package redisurl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkTimeout is the longest time of a check of all addresses together.
const checkTimeout = 5 * time.Second

// Check compares the mode of the flags with the servers' mode. It takes the servers' mode from the first address that
// answers.
func (s Servers) Check(ctx context.Context) error {
	if s.Mode == Embedded {
		return nil
	}
	var faults []error
	for _, address := range s.shared().addresses {
		err := s.checkServer(ctx, address)
		var silent *silentError
		if !errors.As(err, &silent) {
			return err
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// silentError means that a server did not answer, or not as Redis does.
type silentError struct {
	address string
	cause   error
}

func (e *silentError) Error() string {
	return fmt.Sprintf("the Redis at %s does not answer: %v", e.address, e.cause)
}

func (e *silentError) Unwrap() error { return e.cause }

func (s Servers) checkServer(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout/time.Duration(len(s.shared().addresses)))
	defer cancel()
	login := s.shared()
	client := s.node(redis.Options{
		Addr: address, Username: login.user, Password: login.password, TLSConfig: login.tls, MaxRetries: -1, DB: s.single.DB,
	})
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if redis.HasErrorPrefix(err, "NOPERM") {
		return nil // the module's own check follows
	}
	if err != nil {
		return refusal(address, err)
	}
	if found := modeIn(info); found != "" && found != s.Mode {
		return fmt.Errorf("the Redis at %s runs in %s mode, not in -redis-mode %s", address, found, s.Mode)
	}
	switch s.Mode {
	case Sentinel:
		return s.checkMaster(ctx, client, address)
	case Cluster:
		return checkSlots(ctx, client, address)
	}
	return nil
}

// checkSlots checks that a cluster has slots, which it gets when it is created.
func checkSlots(ctx context.Context, client *redis.Client, address string) error {
	slots, err := client.Do(ctx, "CLUSTER", "SLOTS").Slice() // Redis 6.2 has no CLUSTER SHARDS
	if err == nil && len(slots) == 0 {
		return fmt.Errorf("the cluster at %s is not created yet: no node has slots (redis-cli --cluster create)", address)
	}
	if redis.HasErrorPrefix(err, "NOPERM") {
		return nil
	}
	return refusal(address, err)
}

// checkMaster checks that a sentinel watches the master.
func (s Servers) checkMaster(ctx context.Context, client *redis.Client, address string) error {
	err := client.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Master()).Err()
	if errors.Is(err, redis.Nil) {
		return fmt.Errorf("the sentinel at %s watches no master named %q", address, s.Master())
	}
	return refusal(address, err)
}

// refusal converts an error of a command: for an error reply it says so, and without a reply it returns a
// [silentError].
func refusal(address string, err error) error {
	var answer redis.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer):
		return fmt.Errorf("the Redis at %s refuses: %w", address, err)
	}
	return &silentError{address, err}
}

// modeIn returns the mode in a server's INFO, or an empty one.
func modeIn(info string) Mode {
	_, rest, _ := strings.Cut(info, "\r\nredis_mode:")
	mode, _, _ := strings.Cut(rest, "\r\n")
	return Mode(mode)
}
