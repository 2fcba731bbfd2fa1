package redisqueue

import "fmt"

// Config configures a [Queue], beside what it has in common with the stores.
type Config struct {
	// LogEntries is how many entries the log of a shard keeps, where no host owns
	// it or its owner cannot keep up: of more it drops the oldest, and counts
	// them. At least 1, at most 1,000,000; default 10,000.
	LogEntries int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{LogEntries: 10_000} }

const mostLogEntries = 1_000_000

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	if c.LogEntries < 1 || c.LogEntries > mostLogEntries {
		return fmt.Errorf("LogEntries is %d, want 1 to %d", c.LogEntries, mostLogEntries)
	}
	return nil
}
