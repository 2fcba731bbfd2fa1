package handlers

import (
	"errors"
	"fmt"
	"time"
)

// Config configures the handlers.
type Config struct {
	// MaxBodyBytes is the size in bytes that a request body may have; a larger
	// one is answered 413 M_TOO_LARGE. Default 64 KiB.
	MaxBodyBytes int64

	// MaxJSONDepth is how deep arrays and objects in a body may nest; a deeper
	// one is answered 400 M_NOT_JSON. Default 64.
	MaxJSONDepth int

	// RequestTimeout bounds what a request may take after its body has arrived;
	// past it, the answer is 503. Above zero; default 5 s.
	RequestTimeout time.Duration

	// MSC3881 is whether GET /pushers tells the device of each pusher and whether it is
	// enabled, as org.matrix.msc3881.device_id and org.matrix.msc3881.enabled. A host
	// that turns it on has "org.matrix.msc3881": true in the unstable_features of
	// /versions, so that clients offer to turn pushers of other devices off. Default false.
	MSC3881 bool
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxBodyBytes: 64 << 10, MaxJSONDepth: 64, RequestTimeout: 5 * time.Second}
}

// Validate joins an error for each field that is not as its comment says.
func (c Config) Validate() error {
	var faults []error
	if c.MaxBodyBytes < 1 {
		faults = append(faults, fmt.Errorf("MaxBodyBytes is %d, want at least 1", c.MaxBodyBytes))
	}
	if c.MaxJSONDepth < 1 || c.MaxJSONDepth > 1000 {
		faults = append(faults, fmt.Errorf("MaxJSONDepth is %d, want 1 to 1000", c.MaxJSONDepth))
	}
	if c.RequestTimeout <= 0 {
		faults = append(faults, fmt.Errorf("RequestTimeout is %v, want above 0", c.RequestTimeout))
	}
	return errors.Join(faults...)
}
