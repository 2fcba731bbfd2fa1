package delivery

import (
	"time"

	"github.com/pushfx/pushfx/module/delivery/content"
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

// outcomeOf is what metrics call a verdict, empty if nothing was sent.
func outcomeOf(v content.Verdict, class content.Class) PostOutcome {
	switch v {
	case content.Delivered:
		return PostDelivered
	case content.Rejected:
		return PostRejected
	case content.Refused:
		return PostRefused
	case content.Throttled, content.Busy:
		return PostThrottled
	case content.Blocked:
		return PostBlocked
	case content.Unsent:
		return ""
	}
	if class == content.ClassTimeout {
		return PostTimeout
	}
	return PostFailed
}

// DropReason is why a notification is not sent.
type DropReason string

// The reasons.
const (
	DropExpired    DropReason = "expired"    // it is too old to be of use
	DropCoalesced  DropReason = "coalesced"  // too many waited for the pusher, or its counts had not changed
	DropRefused    DropReason = "refused"    // the gateway does not take it, nor as little as event_id_only tells
	DropRead       DropReason = "read"       // the user has read the event
	DropGone       DropReason = "gone"       // the pusher was deleted, disabled or rejected
	DropUnreadable DropReason = "unreadable" // the queue has an entry that cannot be read
)

// DropReasons are all reasons.
func DropReasons() []DropReason {
	return []DropReason{DropExpired, DropCoalesced, DropRefused, DropRead, DropGone, DropUnreadable}
}

// dropped counts notifications that are not sent.
func (d *Delivery) dropped(reason DropReason, notifications int) {
	if notifications > 0 {
		d.observer.Count(observe.NotificationDropped, string(reason), notifications)
	}
}

// GateState is how a host treats a push gateway, for an app.
type GateState int

// The states.
const (
	GateOpen   GateState = iota
	GateClosed           // it fails, or wants to be left alone, and is only tried from time to time
	GateHeld             // an operator has it sent nothing
	gateStates
)

// String returns the name of the state.
func (s GateState) String() string { return [gateStates]string{"open", "closed", "held"}[s] }

// Stats is what a host does right now.
type Stats struct {
	InFlight        int             // requests under way to gateways that answer within a second
	Slow            int             // those to gateways that do not, or have not answered yet
	Late            time.Duration   // for how long the backlog had been due that was due the longest, in the queue
	Gateways        [gateStates]int // by [GateState], for each app
	RemovalsStopped int             // of them, those of which no rejected pushers are removed
	CutOff          bool            // no gateway can be reached
}
