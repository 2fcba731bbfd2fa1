package feed

import (
	"errors"
	"fmt"
	"time"
)

// FeedConfig configures [Feed].
type Config struct {
	// Recheck is the interval of comparing users' versions with the store, and of reading
	// cached pushers again, to find changes that the watch missed. Above zero; default 1
	// minute.
	Recheck time.Duration

	// MaxUsers limits the users whose versions are tracked, about 200 bytes each: users
	// of this host's syncs and, with delivery, members of their rooms. Default 200,000.
	MaxUsers int

	// MaxPusherBytes limits the memory for cached pushers ([Feed.Pushers]): about 250 bytes
	// for a user without pushers, 1 KB for a pusher. 0 caches none; default 32 MiB.
	MaxPusherBytes int

	// MaxQueued limits the users whose changes wait for one slow listener. Default 10,000.
	MaxQueued int
}

// DefaultFeedConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Recheck: time.Minute, MaxUsers: 200_000, MaxPusherBytes: 32 << 20, MaxQueued: 10_000}
}

// Validate joins the errors of all invalid fields.
func (c Config) Validate() error {
	var faults []error
	if field := "Recheck"; c.Recheck <= 0 {
		faults = append(faults, fmt.Errorf("%s is %v, want above 0", field, c.Recheck))
	}
	if c.MaxUsers < 1 {
		faults = append(faults, fmt.Errorf("MaxUsers is %d, want at least 1", c.MaxUsers))
	}
	if c.MaxPusherBytes < 0 {
		faults = append(faults, fmt.Errorf("MaxPusherBytes is %d, want at least 0", c.MaxPusherBytes))
	}
	if c.MaxQueued < 1 {
		faults = append(faults, fmt.Errorf("MaxQueued is %d, want at least 1", c.MaxQueued))
	}
	return errors.Join(faults...)
}
