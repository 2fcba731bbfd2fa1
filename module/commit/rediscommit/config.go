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

	// LargeValueBytes is the size in bytes from which a user's rules are written
	// by a plain SET under another key, which then takes the place of the old
	// one. In the arguments of a script, Redis would copy them several times.
	// With a Durability there is no such size. Default 8 KiB.
	LargeValueBytes int

	// CacheBytes bounds the memory that each of the three stores (rules, pushers,
	// pushkeys) takes for cached values. Of a cached value, a read asks Redis
	// only whether it is still stored, which saves the more the larger it is, and
	// a change needs no read, which saves a round trip. Values of a sixteenth of
	// this and more are not cached; 0 caches nothing. Default 64 MiB.
	CacheBytes int
}

// Options are what a [Store] depends on beside its client and its Config. The zero
// value will do for one host.
type Options struct {
	// Now is the clock for the versions of values: that of Redis, see
	// [redisclient.Clock], so that hosts with different clocks agree. Nil is the
	// host's own.
	Now func() time.Time

	// WaitLimiter is shared by all stores on the client, so that waits for a
	// [Durability] leave half of its connections to other commands. Nil is the store's
	// own.
	WaitLimiter *WaitLimiter

	// Observer is told of lost races, unknown outcomes and waits; of operations,
	// the services tell. Nil is none.
	Observer observe.Observer
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		OperationTimeout: 5 * time.Second, Durability: Durability{Timeout: 500 * time.Millisecond},
		LargeValueBytes: 8 << 10, CacheBytes: 64 << 20,
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
	faults := []error{c.Durability.validate()}
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
