package delivery

import "time"

// Observer is notified of what delivery does. Its methods must not block, must
// not panic, and must be safe for concurrent use. All names that it gets are of
// small fixed sets, but for the gateway, a URL's scheme, host and port, of which
// there are as many as pushers name.
type Observer interface {
	// HandedOver is called when a host has handed an event over, with how long that
	// took, and whether it succeeded. An event of which nobody is notified counts.
	HandedOver(took time.Duration, ok bool)

	// Posted is called when a request to a push gateway has ended.
	Posted(gateway string, outcome PostOutcome, took time.Duration)

	// Delivered is called for each notification that a gateway has taken, with the
	// time since it was handed over.
	Delivered(age time.Duration)

	// Dropped is called for notifications that are not sent.
	Dropped(reason DropReason, notifications int)

	// Remembered is called when rules were needed for deciding, with the number of
	// users whose rules were remembered, and of those whose were read.
	Remembered(hits, misses int)
}

// PostOutcome is how a request to a push gateway has ended.
type PostOutcome string

// The outcomes.
const (
	PostDelivered PostOutcome = "delivered"
	PostRejected  PostOutcome = "rejected"  // the pushkey is not valid
	PostRefused   PostOutcome = "refused"   // 400, 413 or 422
	PostThrottled PostOutcome = "throttled" // to be tried later: 429, 503 with Retry-After, or 507
	PostFailed    PostOutcome = "failed"
	PostTimeout   PostOutcome = "timeout"
	PostBlocked   PostOutcome = "blocked" // the address is not to be connected to
)

// PostOutcomes are all outcomes.
func PostOutcomes() []PostOutcome {
	return []PostOutcome{PostDelivered, PostRejected, PostRefused, PostThrottled, PostFailed, PostTimeout, PostBlocked}
}

// outcome is what metrics call a verdict.
func (v verdict) outcome() PostOutcome {
	switch v {
	case delivered:
		return PostDelivered
	case rejected:
		return PostRejected
	case refused:
		return PostRefused
	case throttled, limited, busy:
		return PostThrottled
	case timedOut:
		return PostTimeout
	case blocked:
		return PostBlocked
	}
	return PostFailed
}

// DropReason is why a notification is not sent.
type DropReason string

// The reasons.
const (
	DropExpired    DropReason = "expired"    // it is too old to be of use
	DropCoalesced  DropReason = "coalesced"  // newer ones are kept of a pusher in trouble, or its counts had not changed
	DropRefused    DropReason = "refused"    // the gateway does not take it, nor as little as event_id_only tells
	DropRead       DropReason = "read"       // the user has read the event
	DropGone       DropReason = "gone"       // the pusher was deleted, disabled or rejected
	DropEvicted    DropReason = "evicted"    // what is held takes too much memory
	DropFlushed    DropReason = "flushed"    // an operator has dropped it
	DropUnreadable DropReason = "unreadable" // the queue has an entry that cannot be read
)

// DropReasons are all reasons.
func DropReasons() []DropReason {
	return []DropReason{DropExpired, DropCoalesced, DropRefused, DropRead, DropGone, DropEvicted, DropFlushed, DropUnreadable}
}

// noObserver does nothing.
type noObserver struct{}

func (noObserver) HandedOver(time.Duration, bool)            {}
func (noObserver) Posted(string, PostOutcome, time.Duration) {}
func (noObserver) Delivered(time.Duration)                   {}
func (noObserver) Dropped(DropReason, int)                   {}
func (noObserver) Remembered(int, int)                       {}

// Stats is what a host does right now, a second old at most.
type Stats struct {
	InFlight    int             // requests under way that are not slow: [Config.MaxInFlight] bounds them
	Slow        int             // those that have been under way for a second, or are to a gateway that hangs
	ShardsOwned int             // logs that this host works on
	OpenEntries int             // read from the logs and not finished
	Oldest      time.Duration   // since the oldest of them was handed over
	HeldPushers int             // pushers in trouble
	HeldBytes   int             // what is kept of them
	Gateways    [gateStates]int // by [GateState]
	Braked      int             // gateways that reject too many pushkeys at once
	Takeovers   int64           // shards that were taken since the start
}
