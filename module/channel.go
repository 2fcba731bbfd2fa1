package module

// Outcome is what an answer says about a notification that was sent. An answer is about the
// recipient, the notification, the gateway (for mail the server that takes it), or this host. In
// doubt, it is about the gateway or this host: then no pusher is removed, and nothing is dropped.
type Outcome string

// The outcomes.
const (
	Delivered Outcome = "delivered"

	Gone Outcome = "gone" // the recipient will never get anything: its pusher is removed, up to a limit
	Busy Outcome = "busy" // the recipient gets nothing now: its pusher waits

	Unfit Outcome = "unfit" // this notification will never be taken: it is sent in a shorter form once, then dropped

	Failed    Outcome = "failed"    // the gateway may not work: if others fail there, too, all wait
	Throttled Outcome = "throttled" // the gateway wants less, and may say for how long; as Failed

	Blocked Outcome = "blocked" // this host may not send to the gateway, or is configured wrongly: others may
)
