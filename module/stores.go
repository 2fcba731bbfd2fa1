package module

import "time"

// Stores are the stores of the service.
type Stores struct {
	Rules    RuleStore
	Pushers  PusherStore
	Pushkeys PushkeyIndex

	// Unread is nil for a host without unread counts. The service only deletes lists of
	// deactivated users.
	Unread UnreadStore

	// Now is the clock of the stores; nil means the host's clock. The service numbers the
	// sets of a pushkey by its time, so that a new set gets a higher number than all
	// earlier ones, even if the entry was deleted.
	Now func() time.Time
}
