package rulestore

import (
	"errors"
	"fmt"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
)

// Config configures a [Store].
type Config struct {
	Redis rediscommit.Config

	// MaxEventBytes is the size in bytes to which a user's stored event may
	// grow. Default 1 MiB.
	MaxEventBytes int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Redis: rediscommit.DefaultConfig(), MaxEventBytes: 1 << 20}
}

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	err := c.Redis.Validate()
	if c.MaxEventBytes < 1 {
		err = errors.Join(err, fmt.Errorf("MaxEventBytes is %d, want at least 1", c.MaxEventBytes))
	}
	return err
}
