package redisclient

import (
	"fmt"
	"time"
)

// Config configures what the module requires of the servers.
type Config struct {
	// StartTimeout bounds the check at start; see [Monitor.Check]. Above zero;
	// default 5 s.
	StartTimeout time.Duration

	// AllowEviction lets the servers evict keys when their memory is full: users
	// lose their push rules and pushers then, and nothing tells of it. Default:
	// false; such a Redis is refused at start, and a host is not ready if it
	// becomes so later.
	AllowEviction bool
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{StartTimeout: 5 * time.Second} }

// Validate returns an error for a field that is not as its comment says.
func (c Config) Validate() error {
	if c.StartTimeout <= 0 {
		return fmt.Errorf("StartTimeout is %v, want above 0", c.StartTimeout)
	}
	return nil
}
