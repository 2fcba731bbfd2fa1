package delivery

import (
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// The calls of the host, as an observer sees them.
var (
	decideCall = &observe.Operation{Kind: observe.Call, Name: observe.Delivery, Verb: "Decide"}
	notifyCall = &observe.Operation{Kind: observe.Call, Name: observe.Delivery, Verb: "Notify"}
)

// PostOutcome is the result of a request to a push gateway.
type PostOutcome string

// The outcomes.
const (
	PostDelivered PostOutcome = "delivered"
	PostRejected  PostOutcome = "rejected"  // the pushkey is not valid
	PostRefused   PostOutcome = "refused"   // the notification will never be taken: 400, 413 or 422
	PostThrottled PostOutcome = "throttled" // later: 429, 503 with Retry-After, or 507
	PostFailed    PostOutcome = "failed"
	PostTimeout   PostOutcome = "timeout"
	PostBlocked   PostOutcome = "blocked" // this host may not send: the address is not allowed, or a mail server refuses the host
)

// PostOutcomes returns all outcomes.
func PostOutcomes() []PostOutcome {
	return []PostOutcome{PostDelivered, PostRejected, PostRefused, PostThrottled, PostFailed, PostTimeout, PostBlocked}
}

// outcomeOf returns the label of an answer, empty if no request was sent.
func outcomeOf(a channel.Answer) PostOutcome {
	switch a.Outcome {
	case module.Delivered:
		return PostDelivered
	case module.Gone:
		return PostRejected
	case module.Unfit:
		return PostRefused
	case module.Throttled, module.Busy:
		return PostThrottled
	case module.Blocked:
		return PostBlocked
	case "":
		return ""
	}
	if a.Class == channel.ClassTimeout {
		return PostTimeout
	}
	return PostFailed
}

// DropReason is why a notification is dropped.
type DropReason string

// The reasons.
const (
	DropExpired    DropReason = "expired"    // it is too old
	DropCoalesced  DropReason = "coalesced"  // too many waited for the user, or the counts were unchanged
	DropRefused    DropReason = "refused"    // the gateway does not accept it, not even as event_id_only
	DropRead       DropReason = "read"       // the user has read the event
	DropMuted      DropReason = "muted"      // the user's rules mute the event while it waits for a mail
	DropGone       DropReason = "gone"       // the pusher was removed, disabled or rejected
	DropUnreadable DropReason = "unreadable" // its entry in the queue is invalid
)

// DropReasons returns all reasons.
func DropReasons() []DropReason {
	return []DropReason{DropExpired, DropCoalesced, DropRefused, DropRead, DropMuted, DropGone, DropUnreadable}
}

func (d *Delivery) dropped(reason DropReason, notifications int) {
	if notifications > 0 {
		d.observer.Count(observe.NotificationDropped, string(reason), notifications)
	}
}

// GateState is the state of a push gateway for an app.
type GateState int

// The states.
const (
	GateOpen    GateState = iota
	GateClosed            // it fails or is throttled, for three users: hosts only probe it
	GateBlocked           // its address is not allowed: this host sends it nothing for an hour
	gateStates
)

// String returns the name of the state.
func (s GateState) String() string { return [gateStates]string{"open", "closed", "blocked"}[s] }

// Stats is the current state of a host.
type Stats struct {
	InFlight        int                 // requests in flight for less than two seconds
	Slow            int                 // requests in flight for longer
	Late            time.Duration       // since the earliest due time; it grows while looks fail
	Waiting         int                 // notifications in the queue, due or not, at most 15 s ago; an estimate if there are many
	Oldest          time.Duration       // for how long notifications of three users have waited at a gateway; it grows while the queue cannot be read
	WaitingAt       map[string]int      // users for whom something waits, by [GatewayName], of the gateways with the most
	Worst           int                 // users for whom something waits at the gateway with most, without what waits by itself
	NotSent         map[pusher.Kind]int // users for whom something waits that this host does not send, by kind
	Gateways        [gateStates]int     // number of gateways and apps, by [GateState]
	RemovalsStopped int                 // number of gateways and apps at the rejection limit
	CutOff          bool                // this host reaches no gateway
}
