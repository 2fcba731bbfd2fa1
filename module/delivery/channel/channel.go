// Package channel is what delivery asks of a kind of pushers, and what a kind answers; its API may
// change at any time. Each kind has a folder below it, and kinds has all of them.
package channel

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Channel sends to the pushers of one kind. It is safe for concurrent use.
type Channel interface {
	Kind() pusher.Kind

	// Read completes the target of a pusher: its gateway, and how to send to it. Ok is false for a
	// pusher that gets nothing, for example because its URL is invalid.
	Read(p pusher.Pusher, t *Target) (ok bool)

	// Sends reports whether this host has what it needs to send. Otherwise, the channel knows the
	// gateway of a pusher, and other hosts send.
	Sends() bool

	// Delay is how long a notification waits before it is sent, for a [Collector].
	Delay() time.Duration
}

// Poster sends notifications to a pusher one by one.
type Poster interface {
	Post(ctx context.Context, n Notification) Answer
}

// Notification is a notification to send. Without a text, it has only the ids, or counts.
type Notification struct {
	module.Notification
	Meta   content.Meta
	Counts *module.Counts // nil for none, and for a [Collector]
}

// Collector sends all that waits for a pusher at once, and seldom.
type Collector interface {
	// Pause returns how long the next one has to wait after the last one, of which note is the text
	// that Note has returned. The pause ends when the user has read one of the events, if there are any.
	Pause(note string, now time.Time) (wait time.Duration, until []content.Meta)

	// Confirm reports whether the pusher is still the user's.
	Confirm(ctx context.Context) (bool, error)

	// Muted reports of each notification whether the user's present push rules want it no more.
	Muted(rules pushrule.Ruleset, all []Notification) []bool

	// Compose returns a function that sends the notifications, oldest first. A repetition has the
	// same id. Short leaves out what makes it large.
	Compose(id string, all []Notification, short bool) (send func(context.Context) Answer, err error)

	// Note returns the text that Pause gets for the next one, after one that was delivered.
	Note(note string, all []Notification, now time.Time) string

	// Delayed is reported when the gateway takes nothing of this host.
	Delayed() observe.Problem
}
