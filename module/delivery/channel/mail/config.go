package mail

import (
	"errors"
	"fmt"
	"time"

	"github.com/pushfx/pushfx/module/delivery/content"
)

// Config says when mails are sent, and how many events they show.
type Config struct {
	// Delay is how old an unread notification is before it is mailed. 1 s to 12 h; default
	// 10 min.
	Delay time.Duration

	// Repeat is the least time between two mails to a user who has read nothing of the first
	// one. At most 24 h, and together with Delay at most MaxAge of delivery. Default 23 h.
	Repeat time.Duration

	// MaxEvents bounds the events that a mail shows: the newest ones. It counts the others. 1 to
	// 200; default 20.
	MaxEvents int

	// Content is delivery.FullContent, or delivery.NamesOnly for mails without the content of events.
	// A mail has no more than Content of delivery allows. Default FullContent.
	Content content.Policy
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Delay: 10 * time.Minute, Repeat: 23 * time.Hour, MaxEvents: 20, Content: content.FullContent}
}

// Validate joins the errors of all invalid fields.
func (c Config) Validate() error {
	var faults []error
	if c.Delay < time.Second || c.Delay > 12*time.Hour {
		faults = append(faults, fmt.Errorf("Delay is %v, want 1s to 12h", c.Delay))
	}
	if c.Repeat < 0 || c.Repeat > day {
		faults = append(faults, fmt.Errorf("%s is %v, want 0s to 24h", "Repeat", c.Repeat))
	}
	if c.MaxEvents < 1 || c.MaxEvents > 200 {
		faults = append(faults, fmt.Errorf("MaxEvents is %d, want 1 to 200", c.MaxEvents))
	}
	if c.Content != content.FullContent && c.Content != content.NamesOnly {
		faults = append(faults, fmt.Errorf("%s is %q, want %q or %q", "Content", c.Content, content.FullContent, content.NamesOnly))
	}
	return errors.Join(faults...)
}

// ValidateAge returns an error if notifications expire before the second mail.
func (c Config) ValidateAge(maxAge time.Duration) error {
	if c.Delay+c.Repeat > maxAge {
		return fmt.Errorf("Delay and Repeat are %v and %v, want together at most %v, the MaxAge of delivery", c.Delay, c.Repeat, maxAge)
	}
	return nil
}
