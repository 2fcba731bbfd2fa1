package rulestore

import (
	"errors"
	"fmt"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
)

// Config configures a [Store].
type Config struct {
	Redis rediscommit.Config

	// LargeEventBytes is the size in bytes from which an event is replaced by a
	// plain SET of another key, which then takes its place, and not by a script
	// with the event as an argument, which Redis copies several times. With a
	// durability there is no such size. Default 32 KiB.
	LargeEventBytes int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Redis: rediscommit.DefaultConfig(), LargeEventBytes: 32 << 10}
}

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	err := c.Redis.Validate()
	if c.LargeEventBytes < 1 {
		err = errors.Join(err, fmt.Errorf("LargeEventBytes is %d, want at least 1", c.LargeEventBytes))
	}
	return err
}
