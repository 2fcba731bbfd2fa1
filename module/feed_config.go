package module

import (
	"errors"
	"fmt"
	"time"
)

// FeedConfig configures [Feed].
type FeedConfig struct {
	// Recheck is how often the versions of the users who sync here are compared
	// with the store, for changes that the watch has missed. Default 1 minute.
	Recheck time.Duration

	// MaxUsers is how many users' versions are kept, about 200 bytes each: those
	// who sync here, and with delivery the members of their rooms. Default 200,000.
	MaxUsers int

	// MaxQueued is how many users' changes may wait for a slow listener, one
	// for each user. Default 10,000.
	MaxQueued int
}

// DefaultFeedConfig returns the defaults.
func DefaultFeedConfig() FeedConfig {
	return FeedConfig{Recheck: time.Minute, MaxUsers: 200_000, MaxQueued: 10_000}
}

// Validate joins an error for each field that is not as its comment says.
func (c FeedConfig) Validate() error {
	var faults []error
	if field := "Recheck"; c.Recheck <= 0 {
		faults = append(faults, fmt.Errorf("%s is %v, want above 0", field, c.Recheck))
	}
	if c.MaxUsers < 1 {
		faults = append(faults, fmt.Errorf("MaxUsers is %d, want at least 1", c.MaxUsers))
	}
	if c.MaxQueued < 1 {
		faults = append(faults, fmt.Errorf("MaxQueued is %d, want at least 1", c.MaxQueued))
	}
	return errors.Join(faults...)
}
