// Package observe reports what the module does to whoever counts and traces it.
// All names that it reports come from small fixed sets, or from the host's
// routes: nothing that a client sends, and nothing about a user.
package observe

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module/fault"
)

// Observer is notified of what the module does. Its methods run within every
// request: they must not block, must not panic, and must be safe for concurrent
// use. An implementation embeds another one, [None] at last, for what it leaves out.
type Observer interface {
	// Begin is called when an operation begins. There are few operations, each is
	// always the same pointer, and none is changed, so that it can be a key. The
	// context that Begin returns is the operation's from then on; the function that
	// it returns is called once, when the operation has ended. The context that it
	// is given tells [Outcome.CallerGone] whether the caller is still there.
	Begin(ctx context.Context, op *Operation) (context.Context, func(Outcome))

	// BeginPost is called when a request to a push gateway begins, with the gateway: a
	// URL's scheme, host and port. Pushers name any number of gateways. The span that
	// handed the notification over, perhaps on another host and long ago,
	// is traceparent; see Traceparent. The function that it returns is called once, when
	// the request has ended, with the outcome as package delivery names it, empty if
	// nothing was sent, and with the HTTP status, 0 if there was no answer.
	BeginPost(ctx context.Context, gateway, traceparent string) (context.Context, func(outcome string, status int))

	// Traceparent names the span of ctx, as W3C Trace Context does, so that another
	// host can link to it. It is empty if the span is not sampled.
	Traceparent(ctx context.Context) string

	// Count is called for events. Label is one of a small fixed set; see [Event].
	Count(event Event, label string, n int)

	// Took is called with how long something took, and whether it succeeded. Label is
	// as for Count; see [Span].
	Took(what Span, label string, took time.Duration, ok bool)

	// Report is called for a problem that no request has, and why: err is for the log,
	// with [fault.Details]. It may be nil.
	Report(problem Problem, err error)
}

// Operation is what can be timed as a whole, and traced.
type Operation struct {
	Kind Kind

	// Name is a request's route as the host mounted it, with its parameters'
	// names, such as "/_matrix/client/v3/pushrules/global/:kind/:ruleId"; of a
	// store it is [PushRules], [Pushers] or [Pushkeys].
	Name string

	// Verb is a request's method, "OTHER" for those that no route has; of a
	// store it is "load", "load_many", "versions", "update" or "remove"; of delivery
	// "Decide" or "Notify".
	Verb string
}

// Kind is a kind of operation.
type Kind int

// The kinds of operations.
const (
	Request Kind = iota // one that the route groups have answered
	Store               // one of a store, the module's or a host's own
	Call                // one of the host's, of what delivers notifications
)

// The names of the stores.
const (
	PushRules = "push_rules"
	Pushers   = "pushers"
	Pushkeys  = "pushkeys" // the index of pushkeys
	Delivery  = "delivery" // the queue of what is to be delivered
)

// Outcome is how an operation has ended.
type Outcome struct {
	Status int   // a request's HTTP status; 0 for a store
	Err    error // for a request, what was logged; for a store, what it returned
}

// CallerGone reports whether the operation only failed because its caller went
// away: the context that it began with was canceled, as net/http does when a
// client hangs up, and the error is not a refusal and does not tell of data.
// Such an operation is neither a success nor a failure of the server.
func (o Outcome) CallerGone(ctx context.Context) bool {
	if o.Err == nil || !errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	kind := fault.KindOf(o.Err)
	return kind == fault.Unavailable || kind == fault.Internal
}

// Event can be counted. Events of stores have the store as their label.
type Event int

// The events.
const (
	// LostRace is a write that another one came before. It is tried again.
	LostRace Event = iota

	// UnknownOutcome is a write whose reply got lost. What is stored tells what
	// became of it.
	UnknownOutcome

	// StaleCache is a LostRace of a write onto the cached value, without reading it
	// first: another host has written since.
	StaleCache

	// WholeRead is a read of a whole value, since it was not cached or has changed.
	WholeRead

	// RuleSetCreated, RuleSetImported and RuleSetRepaired are the default rules of a
	// user who had none, the rules of one who had some on another server, and the
	// removal of rules that are never served.
	RuleSetCreated
	RuleSetImported
	RuleSetRepaired

	// NotificationDropped is a notification that is not sent. Its label is the reason,
	// as package delivery names it.
	NotificationDropped

	// RulesKept and RulesRead are users whose rules were needed to decide an event: the
	// host had them in memory, or has read them.
	RulesKept
	RulesRead

	events
)

// String is the event's name in snake case.
func (e Event) String() string {
	if e < 0 || e >= events {
		return "unknown"
	}
	return [...]string{"lost_race", "unknown_outcome", "stale_cache", "whole_read", "rule_set_created", "rule_set_imported", "rule_set_repaired",
		"notification_dropped", "rules_kept", "rules_read"}[e]
}

// Events are all events.
func Events() []Event {
	all := make([]Event, events)
	for i := range all {
		all[i] = Event(i)
	}
	return all
}

// Span is what has a length.
type Span int

// The spans.
const (
	// DurabilityWait is what a change waited for replicas or a disk, the write
	// included; ok is false if they did not have it in time.
	DurabilityWait Span = iota

	// ChangeLag is the time from a change of push rules, on whichever host, until a
	// listener was called. It is left out where the store does not know when the
	// change was made.
	ChangeLag

	// DeliveryAge is the time from when a notification was handed over until a push
	// gateway took it.
	DeliveryAge
)

// Problem is what operators should know and no request shows.
type Problem int

// The problems.
const (
	// FeedDisconnected is for the start of an outage: the store cannot be watched.
	FeedDisconnected Problem = iota

	// ListenerPanicked is a panic of a change listener of the host.
	ListenerPanicked

	// PushkeysPending is for pushkeys that could not be reconciled. They are looked at again.
	PushkeysPending

	// ImportIncomplete is for a user of whom not everything was imported.
	ImportIncomplete

	// ClientSetting is for a setting of the Redis client that will hurt.
	ClientSetting

	// NoDurability is a reason why no change will be acknowledged.
	NoDurability

	// RedisEvicts is for a master that begins to evict keys, and at the start if the
	// client may not ask.
	RedisEvicts

	// ClockDiffers and ClockUnknown are for the clock of Redis.
	ClockDiffers
	ClockUnknown

	// DeliveryDelayed is for what delivery will try again, each kind of it once in half
	// a minute.
	DeliveryDelayed

	// TooManyRejections is for a push gateway that rejects so many pushkeys of an app that
	// no more pushers are removed.
	TooManyRejections

	// PusherRemoved is for a pusher whose pushkey its gateway has rejected. The error is
	// its digest.
	PusherRemoved
)

var problems = [...]string{
	FeedDisconnected:  "change feed disconnected from Redis, reconnecting",
	ListenerPanicked:  "change listener panicked",
	PushkeysPending:   "pushkeys are still pending",
	ImportIncomplete:  "rules or pushers of a user were not imported",
	ClientSetting:     "a setting of the Redis client will hurt",
	NoDurability:      "no change will be acknowledged",
	RedisEvicts:       "Redis may evict keys",
	ClockDiffers:      "the clocks of this host and of Redis differ",
	ClockUnknown:      "the clock of Redis cannot be read",
	DeliveryDelayed:   "notifications are delayed",
	TooManyRejections: "a push gateway rejects too many pushkeys of an app, no more are removed",
	PusherRemoved:     "pusher removed, its gateway has rejected the pushkey",
}

// String is the line that operators see.
func (p Problem) String() string {
	if p < 0 || int(p) >= len(problems) {
		return "unknown problem"
	}
	return problems[p]
}

// Problems are all problems.
func Problems() []Problem {
	all := make([]Problem, len(problems))
	for i := range all {
		all[i] = Problem(i)
	}
	return all
}

// IsFault reports whether the problem stays until an operator acts.
func (p Problem) IsFault() bool { return p == ListenerPanicked || p == TooManyRejections }

// IsRoutine reports whether the problem is none for operators, but good to know when
// somebody asks.
func (p Problem) IsRoutine() bool { return p == PusherRemoved }

// None is an observer that does nothing.
var None Observer = none{}

type none struct{}

func (none) Begin(ctx context.Context, _ *Operation) (context.Context, func(Outcome)) {
	return ctx, ignore
}
func (none) BeginPost(ctx context.Context, _, _ string) (context.Context, func(string, int)) {
	return ctx, func(string, int) {}
}
func (none) Traceparent(context.Context) string     { return "" }
func (none) Count(Event, string, int)               {}
func (none) Took(Span, string, time.Duration, bool) {}
func (none) Report(Problem, error)                  {}
func ignore(Outcome)                                {}

// Or returns the observer, or None if it is nil.
func Or(o Observer) Observer {
	if o == nil {
		return None
	}
	return o
}
