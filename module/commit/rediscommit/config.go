package rediscommit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/observe"
)

// Config configures the stores on Redis: each [Store], and those that are built on
// it.
type Config struct {
	// KeyPrefix stands before every key. It has no braces, which would change the
	// hash slot. Hosts that serve the same users share it; others on the same Redis
	// differ. Default: none.
	KeyPrefix string

	// OperationTimeout bounds each load or update, its retries included, whoever
	// asks for it; what a request asks for also ends with the request. The client
	// must honour deadlines (ContextTimeoutEnabled). Above zero and at most 30 s;
	// default 5 s.
	OperationTimeout time.Duration

	// Durability says when an update counts as made. Default: when the master
	// has it in memory.
	Durability Durability

	// LargeValueBytes is the size in bytes from which a user's rules are replaced by
	// a plain SET of another key, which then takes the place of the old one, and not
	// by a script with the value as an argument, which Redis copies several times.
	// With a Durability there is no such size. Default 32 KiB.
	LargeValueBytes int

	// CacheBytes bounds the memory that each of the three stores, of rules, of pushers
	// and of pushkeys, takes for values that it has read or written. Of those, a read
	// asks Redis only whether they are stored still, which costs less the larger they
	// are; a change begins with them, which saves a round trip. Values of a sixteenth
	// of it and more are not kept; 0 keeps none. Default 64 MiB.
	CacheBytes int
}

// Options are what a [Store] depends on beside its client and its Config. The zero
// value will do for one host.
type Options struct {
	// Now is the clock for the versions of values: that of Redis, as
	// [redisclient.Clock] knows it, so that hosts whose own clocks differ agree.
	// Nil is the host's own.
	Now func() time.Time

	// Observer is told of lost races, unknown outcomes and waits; of operations,
	// the services tell. Nil is none.
	Observer observe.Observer
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		OperationTimeout: 5 * time.Second, Durability: Durability{Timeout: 500 * time.Millisecond},
		LargeValueBytes: 32 << 10, CacheBytes: 64 << 20,
	}
}

// Bound returns a context that ends when the time of an operation is up, at the latest.
func (c Config) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, found := ctx.Deadline(); found && time.Until(end) <= c.OperationTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.OperationTimeout)
}

// maxOperationTimeout is a small part of the 10 minutes for which values without
// contents stay, for their revisions.
const maxOperationTimeout = 30 * time.Second

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	faults := []error{c.Durability.Validate()}
	if strings.ContainsAny(c.KeyPrefix, "{}") {
		faults = append(faults, fmt.Errorf("KeyPrefix is %q, want no braces", c.KeyPrefix))
	}
	if c.CacheBytes < 0 {
		faults = append(faults, fmt.Errorf("CacheBytes is %d, want at least 0", c.CacheBytes))
	}
	if c.OperationTimeout <= 0 || c.OperationTimeout > maxOperationTimeout {
		faults = append(faults, fmt.Errorf("OperationTimeout is %v, want above 0 and at most %v", c.OperationTimeout, maxOperationTimeout))
	} else if c.Durability.isAsked() && c.Durability.Timeout >= c.OperationTimeout {
		faults = append(faults, fmt.Errorf("Durability.Timeout is %v, want less than OperationTimeout, %v", c.Durability.Timeout, c.OperationTimeout))
	}
	if c.LargeValueBytes < 1 {
		faults = append(faults, fmt.Errorf("LargeValueBytes is %d, want at least 1", c.LargeValueBytes))
	}
	return errors.Join(faults...)
}
