package delivery

import (
	"time"

	"github.com/pushfx/pushfx/module/observe"
)

// The calls of the host, as an observer sees them.
var (
	decideCall = &observe.Operation{Kind: observe.Call, Name: observe.Delivery, Verb: "Decide"}
	notifyCall = &observe.Operation{Kind: observe.Call, Name: observe.Delivery, Verb: "Notify"}
)

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

// outcome is what metrics call a verdict, empty if nothing was sent.
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
	case unsent:
		return ""
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

// drop counts notifications that are not sent.
func (s *sender) drop(reason DropReason, notifications int) {
	s.observer.Count(observe.NotificationDropped, string(reason), notifications)
}

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
