package module

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

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

// Channel sends notifications to the pushers of a kind of the host's own, such as "com.example.sms".
// They are queued, repeated and shown as those of kind http. It is called by many goroutines at once.
type Channel interface {
	// Kind is a name of small letters, digits and . _ -, other than "http", "https", "mail" and "email".
	Kind() pusher.Kind

	// CheckPusher refuses a pusher that is set or imported, with [fault.MissingParam] or
	// [fault.InvalidParam]. What the specification asks of all kinds is checked before.
	CheckPusher(p pusher.Pusher) error

	// Send sends a notification: a JSON object as the body of a request to a push gateway (Push
	// Gateway API, "POST /_matrix/push/v1/notify"). It returns when ctx ends.
	Send(ctx context.Context, user mxid.UserID, to pusher.Pusher, notification []byte) ChannelAnswer
}

// ChannelAnswer is the answer to [Channel.Send].
type ChannelAnswer struct {
	Outcome    Outcome       // empty for Failed
	RetryAfter time.Duration // for [Throttled] and [Busy], 0 if unknown
	Status     int           // a code for operators, 0 for none
	Err        error         // why, for the log; without the pushkey
}
