package redisclient

import (
	"fmt"
	"time"
)

// Config holds the module's requirements on the servers.
type Config struct {
	// StartTimeout bounds [Monitor.Check]. Above zero; default 5 s.
	StartTimeout time.Duration

	// AllowEviction accepts servers that evict keys when their memory is full, by which
	// users silently lose push rules and pushers. Default: false. Then a host refuses
	// to start with such a server, and is not ready while it has one.
	AllowEviction bool
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{StartTimeout: 5 * time.Second} }

// Validate returns an error for a field that breaks the limits in its comment.
func (c Config) Validate() error {
	if c.StartTimeout <= 0 {
		return fmt.Errorf("StartTimeout is %v, want above 0", c.StartTimeout)
	}
	return nil
}
