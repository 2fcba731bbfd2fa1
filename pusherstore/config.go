package pusherstore

import "github.com/pushfx/pushfx/module/commit/rediscommit"

// Config configures a [Store].
type Config struct{ Redis rediscommit.Config }

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{rediscommit.DefaultConfig()} }

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error { return c.Redis.Validate() }
