package feed

import (
	"errors"
	"fmt"
	"time"
)

// Config configures [Feed].
type Config struct {
	// Recheck is the interval of comparing users' versions with the store, and of reading
	// cached pushers again, to find changes that the watch missed. At least a second; default 1
	// minute.
	Recheck time.Duration

	// MaxBytes limits the memory for cached values of users: a half for the versions of push
	// rules, about 200 bytes for a user of this host's syncs or, with delivery, a member of
	// their rooms; a half for pushers ([Feed.Pushers]), about 200 bytes for a user and 1 KB for a
	// pusher. 0 keeps nothing; default 96 MiB.
	MaxBytes int

	// MaxCachedRules limits the compiled rules that are kept; see [match.Cache]. It counts
	// bytes before compilation; compiled rules take up to seven times as much. Default 32
	// MiB. Rules that are not kept are evaluated and let go: at any time those of at most 128
	// users, for all events of a host, besides one compiled set for each core.
	MaxCachedRules int

	// MaxQueued limits the users whose changes wait for one slow listener. Default 10,000.
	MaxQueued int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Recheck: time.Minute, MaxBytes: 96 << 20, MaxCachedRules: 32 << 20, MaxQueued: 10_000}
}

// Validate joins the errors of all invalid fields.
func (c Config) Validate() error {
	var faults []error
	if field, least := "Recheck", time.Second; c.Recheck < least { // such as 60, which is 60 ns
		faults = append(faults, fmt.Errorf("%s is %v, want at least %v", field, c.Recheck, least))
	}
	if c.MaxBytes < 0 {
		faults = append(faults, fmt.Errorf("MaxBytes is %d, want at least 0", c.MaxBytes))
	}
	if least := 1 << 20; c.MaxCachedRules < least {
		faults = append(faults, fmt.Errorf("MaxCachedRules is %d, want at least %d", c.MaxCachedRules, least))
	}
	if c.MaxQueued < 1 {
		faults = append(faults, fmt.Errorf("MaxQueued is %d, want at least 1", c.MaxQueued))
	}
	return errors.Join(faults...)
}
