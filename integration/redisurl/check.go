package redisurl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkLimit bounds the check, all addresses together.
const checkLimit = 5 * time.Second

// Check asks the servers what they are, so that a mode that does not fit them
// is told before the first command. The first address that answers
// decides.
func (s Servers) Check(ctx context.Context) error {
	if s.Mode == Embedded {
		return nil
	}
	var faults []error
	for _, address := range s.Addresses {
		err := s.checkServer(ctx, address)
		var silent *silentError
		if !errors.As(err, &silent) {
			return err
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// silentError tells of a server that did not answer, or not as a Redis.
type silentError struct {
	address string
	cause   error
}

func (e *silentError) Error() string {
	return fmt.Sprintf("the Redis at %s does not answer: %v", e.address, e.cause)
}

func (e *silentError) Unwrap() error { return e.cause }

// checkServer asks one server.
func (s Servers) checkServer(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit/time.Duration(len(s.Addresses)))
	defer cancel()
	client := redis.NewClient(s.checkOptions(address))
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if redis.HasErrorPrefix(err, "NOPERM") {
		return nil // not allowed to ask; the module's own check comes next
	}
	if err != nil {
		return refusal(address, err)
	}
	if found := modeIn(info); found != "" && found != s.Mode {
		return fmt.Errorf("the Redis at %s runs in %s mode, which -redis-mode %s does not fit", address, found, s.Mode)
	}
	if s.Mode == Sentinel {
		return s.checkMaster(ctx, client, address)
	}
	return nil
}

// checkOptions are those of a client that asks once, and gives up early.
func (s Servers) checkOptions(address string) *redis.Options {
	options := s.nodeOptions(address)
	options.MaxRetries = -1
	if s.Mode == Sentinel {
		options.Username, options.Password, options.DB = s.Sentinels.User, s.Sentinels.Password, 0
	}
	return options
}

// checkMaster asks a sentinel whether it watches the master.
func (s Servers) checkMaster(ctx context.Context, client *redis.Client, address string) error {
	err := client.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Master).Err()
	if errors.Is(err, redis.Nil) {
		return fmt.Errorf("the sentinel at %s watches no master named %q", address, s.Master)
	}
	return refusal(address, err)
}

// refusal tells an answer that is an error from no answer.
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

// modeIn returns the mode that a server's INFO names, empty if it names
// none.
func modeIn(info string) Mode {
	_, rest, _ := strings.Cut(info, "\r\nredis_mode:")
	mode, _, _ := strings.Cut(rest, "\r\n")
	return Mode(mode)
}
