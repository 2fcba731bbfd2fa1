package handlers

import (
	"errors"
	"fmt"
	"time"
)

// Config configures the handlers.
type Config struct {
	// MaxBodyBytes is the maximum size of a request body in bytes; beyond, the answer
	// is 413 M_TOO_LARGE. Default 64 KiB.
	MaxBodyBytes int64

	// MaxJSONDepth is the maximum nesting of arrays and objects in a body, 1 to 1000;
	// beyond, the answer is 400 M_NOT_JSON. Default 64.
	MaxJSONDepth int

	// RequestTimeout is the maximum time for a request after its body has arrived;
	// then the answer is 503. Above zero; default 5 s.
	RequestTimeout time.Duration

	// MSC3881 makes GET /pushers show each pusher's device and whether it is enabled, as
	// org.matrix.msc3881.device_id and org.matrix.msc3881.enabled. The host should then
	// announce "org.matrix.msc3881": true in the unstable_features of /versions, so that
	// clients offer to switch off other devices' pushers. Default false.
	MSC3881 bool
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxBodyBytes: 64 << 10, MaxJSONDepth: 64, RequestTimeout: 5 * time.Second}
}

// Validate joins the errors of all invalid fields.
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
