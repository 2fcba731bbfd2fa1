package rediscommit

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/observe"
)

// Config configures a [Store].
type Config struct {
	// KeyPrefix stands before every key. It has no braces, which would change
	// the hash slot. Default: none.
	KeyPrefix string

	// OperationTimeout bounds each load or update, its retries included. The
	// client must honour deadlines (ContextTimeoutEnabled). Above zero and at
	// most 30 s; default 5 s.
	OperationTimeout time.Duration

	// Durability says when an update counts as made. Default: when the master
	// has it in memory.
	Durability Durability

	// Now is the clock for the versions of values: that of Redis, as
	// [redisclient.Clock] knows it, so that hosts whose own clocks differ agree.
	// Nil is the host's own, which will do for one host.
	Now func() time.Time

	// Observer is told of lost races, unknown outcomes and waits; of operations,
	// the services tell. Nil is none.
	Observer observe.Observer
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{OperationTimeout: 5 * time.Second, Durability: Durability{Timeout: 500 * time.Millisecond}}
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
	if c.OperationTimeout <= 0 || c.OperationTimeout > maxOperationTimeout {
		faults = append(faults, fmt.Errorf("OperationTimeout is %v, want above 0 and at most %v", c.OperationTimeout, maxOperationTimeout))
	} else if c.Durability.isAsked() && c.Durability.Timeout >= c.OperationTimeout {
		faults = append(faults, fmt.Errorf("Durability.Timeout is %v, want less than OperationTimeout, %v", c.Durability.Timeout, c.OperationTimeout))
	}
	return errors.Join(faults...)
}
