package module

import (
	"time"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Stores are the stores of a [Service].
type Stores struct {
	Rules    RuleStore
	Pushers  PusherStore
	Pushkeys PushkeyIndex

	// Unread is nil for a host without unread counts. The service only deletes lists of
	// deactivated users.
	Unread UnreadStore

	// Now is the clock of the stores; nil means the host's clock. The service numbers the
	// claims to a pushkey by its time, so that a new claim gets a higher number than all
	// earlier ones, even if they were deleted.
	Now func() time.Time
}

func (s Stores) time() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// Options are the options of a [Service].
type Options struct {
	Defaults pushrule.Defaults // default rules; the zero value has those of the specification
	Limits   pushrule.Limits   // limits on users' push rules
	Policy   pusher.Policy     // rules for pushers
	Accounts Accounts          // optional

	// Observer gets all operations of the stores, created and repaired rule sets, each
	// [ImportRefused], and errors of reconciling pushkeys. It may be nil.
	Observer observe.Observer

	// ImportSource may be nil.
	ImportSource ImportSource
}
