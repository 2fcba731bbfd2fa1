package redisqueue

import (
	"errors"
	"fmt"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
)

// Config configures a [Queue].
type Config struct {
	// Redis is what the queue has in common with the stores. Its Durability says
	// when what is handed over, and what was achieved, counts as kept.
	Redis rediscommit.Config

	// LogEntries is how many entries the log of a shard keeps, where no host owns
	// it or its owner cannot keep up: of more it drops the oldest, and counts
	// them. At least 1, at most 1,000,000; default 10,000.
	LogEntries int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Redis: rediscommit.DefaultConfig(), LogEntries: 10_000}
}

const mostLogEntries = 1_000_000

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	var logEntries error
	if c.LogEntries < 1 || c.LogEntries > mostLogEntries {
		logEntries = fmt.Errorf("LogEntries is %d, want 1 to %d", c.LogEntries, mostLogEntries)
	}
	return errors.Join(c.Redis.Validate(), logEntries)
}
