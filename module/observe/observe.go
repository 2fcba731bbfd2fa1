// Package observe is the interface between the module and its logs, metrics and traces.
// All reported names come from small fixed sets or from the host's routes, never from a
// client, and none is about a user.
package observe

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module/fault"
)

// Observer receives reports of the module's work. Requests call its methods, so they must
// not block or panic, and must be safe for concurrent use. An implementation embeds
// another Observer, in the end [None], for the methods that it does not define.
type Observer interface {
	// Begin is called at the start of an operation. An operation always has the
	// same pointer and is never changed, so the pointer can be a map key. The operation uses
	// the returned context, and calls the returned function once at its end. An observer
	// passes ctx to [Outcome.CallerGone].
	Begin(ctx context.Context, op *Operation) (context.Context, func(Outcome))

	// BeginPost is called at the start of a request to a push gateway. Gateway is the
	// scheme, host and port of its URL; any number of gateways is possible. Traceparent is
	// the span of the Notify that stored the notification, maybe on another host. For a mail,
	// Gateway is "mail://relay", and Traceparent is empty.
	//
	// The returned function is called once, at the end. Outcome is a word of package
	// delivery, or empty if nothing was sent; status is the HTTP status, about
	// that of SMTP, or 0.
	BeginPost(ctx context.Context, gateway, traceparent string) (context.Context, func(outcome string, status int))

	// Traceparent returns the span of ctx in the form of W3C Trace Context, so that
	// another host can link to it. It is empty if the span is not sampled.
	Traceparent(ctx context.Context) string

	// Count is called for events. Label comes from a small fixed set; see [Event].
	Count(event Event, label string, n int)

	// Took is called with the duration of a span, and whether it succeeded. Label comes
	// from a small fixed set, such as the names of the stores.
	Took(what Span, label string, took time.Duration, ok bool)

	// Report is called for a problem outside requests. Err is the cause, which may be
	// nil; log it with [fault.Details].
	Report(problem Problem, err error)
}

// Operation is an operation that can be timed and traced.
type Operation struct {
	Kind Kind

	// Name of a request is its route as mounted by the host, such as
	// "/_matrix/client/v3/pushrules/global/:kind/:ruleId"; of a store it is [PushRules],
	// [Pushers] or [Pushkeys].
	Name string

	// Verb of a request is its method, "OTHER" for methods without a route; of a store
	// "load", "load_many", "versions", "update" or "remove"; of delivery "Decide" or
	// "Notify".
	Verb string
}

// Kind is a kind of operation.
type Kind int

// The kinds of operations.
const (
	Request Kind = iota // a request to the route groups
	Store               // an operation of a store
	Call                // the host's call of delivery
)

// The names of the stores.
const (
	PushRules = "push_rules"
	Pushers   = "pushers"
	Pushkeys  = "pushkeys" // the index of pushkeys
	Unread    = "unread"   // the lists of unread notifications
	Delivery  = "delivery" // the delivery queue
)

// Outcome is the outcome of an operation.
type Outcome struct {
	Status int   // a request's HTTP status; 0 for a store
	Err    error // of a request, the answered error; of a store, the returned error
}

// CallerGone reports whether the operation failed only because its caller went away: its
// context was canceled, as by net/http when a client hangs up, and the error is neither a
// refusal nor about stored data. Such an operation neither succeeded nor failed.
func (o Outcome) CallerGone(ctx context.Context) bool {
	if o.Err == nil || !errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	kind := fault.KindOf(o.Err)
	return kind == fault.Unavailable || kind == fault.Internal
}

// Event is a counted event. Events of stores have the store as their label.
type Event int

// The events.
const (
	// LostRace is a write that another write preceded. It is repeated.
	LostRace Event = iota

	// UnknownOutcome is a write whose reply was lost. A read then shows its outcome.
	UnknownOutcome

	// StaleCache is a LostRace based on a cached value that another host had changed.
	StaleCache

	// WholeRead is a read that transferred the value, since it was not cached or had
	// changed.
	WholeRead

	// RuleSetCreated, RuleSetImported and RuleSetRepaired count default rules for a
	// user without rules, imported rules, and removals of legacy rules.
	RuleSetCreated
	RuleSetImported
	RuleSetRepaired

	// NotificationDropped is a notification that is not sent. Its label is the reason as
	// package delivery names it.
	NotificationDropped

	// NotificationLate is a notification that a gateway accepted more than 10 s after Notify.
	// Its label is the cause as package delivery names it.
	NotificationLate

	// NotificationUnconfirmed is a stored notification that replicas or a disk have not confirmed
	// in time. It is sent.
	NotificationUnconfirmed

	// HandoverFailed is a failed call of Notify with a valid event. DeliveryFailed is a
	// failure of delivery's background work, such as a look for due backlogs. Their label
	// is the reason as package delivery names it.
	HandoverFailed
	DeliveryFailed

	// RulesKept and RulesRead count users for whom an event was decided, with rules from
	// memory or from the store.
	RulesKept
	RulesRead

	// UnreadAppended, UnreadCompacted and UnreadLong count operations that were appended to
	// lists of unread notifications, lists that were compacted, and appends after which a
	// list had more than 64 texts. UnreadUnreadable counts tries to read or change a list
	// that cannot be read, UnreadShortened the compacted lists that had no place for some
	// unread notifications.
	UnreadAppended
	UnreadCompacted
	UnreadLong
	UnreadUnreadable
	UnreadShortened

	events
)

// String returns the event's name in snake case.
func (e Event) String() string {
	if e < 0 || e >= events {
		return "unknown"
	}
	return [...]string{
		"lost_race", "unknown_outcome", "stale_cache", "whole_read", "rule_set_created", "rule_set_imported",
		"rule_set_repaired", "notification_dropped", "notification_late", "notification_unconfirmed", "handover_failed", "delivery_failed",
		"rules_kept", "rules_read", "unread_appended", "unread_compacted", "unread_long", "unread_unreadable",
		"unread_shortened",
	}[e]
}

// Events returns all events.
func Events() []Event {
	all := make([]Event, events)
	for i := range all {
		all[i] = Event(i)
	}
	return all
}

// Span is a measured duration.
type Span int

// The spans.
const (
	// DurabilityWait is the time of a change, including the wait for replicas or disk. Ok is
	// false if replicas or disk were too slow.
	DurabilityWait Span = iota

	// ChangeLag is the time from a change of push rules, on any host, until a listener is
	// called or the user's waiting syncs wake. It is omitted if the time of the change is
	// unknown.
	ChangeLag

	// DeliveryAge is the time from the handover of a notification until a push gateway
	// accepts it.
	DeliveryAge
)

// Problem is an event for operators that no request shows.
type Problem int

// The problems.
const (
	// FeedDisconnected is the start of an outage: the store cannot be watched.
	FeedDisconnected Problem = iota

	ListenerPanicked

	// PushkeysUnread are entries of pushkeys that cannot be read, reported once in half a
	// minute: their pushers count as their users', even if other users have taken them.
	PushkeysUnread

	ImportIncomplete

	ClientSetting

	// NoDurability is a reason why no change will be acknowledged.
	NoDurability

	// RedisEvicts is a master that evicts keys or, at start, a master whose policy is
	// unknown.
	RedisEvicts

	ClockDiffers
	ClockUnknown

	// MasterSkipped is a master of a cluster that does not reply: calls for many users leave
	// out its users, and values which an interrupted move of a slot has left there are missing.
	// It is reported again only after the master has replied.
	MasterSkipped

	// DeliveryDelayed is a failure that delivery will repeat, reported once in half a
	// minute for each kind.
	DeliveryDelayed

	// MailsDelayed are mails that no server has accepted, for another reason than that a server
	// wants them later. It is reported once in half a minute.
	MailsDelayed

	// KindNotSent is a kind of pusher for which notifications wait, and which this host does not
	// send. Each kind is reported once.
	KindNotSent

	// NotificationsUnconfirmed are NotificationUnconfirmed, reported once in half a minute.
	NotificationsUnconfirmed

	// TooManyRejections is a push gateway that rejects so many pushkeys of an app that no
	// more pushers are removed.
	TooManyRejections

	// PusherRemoved is a removed pusher whose pushkey its gateway has rejected, or whose mail has
	// come back. The error is a delivery.RejectedError or a service.RemovedPusher, which name the user.
	PusherRemoved

	// PusherTaken is a pusher that is gone since another user has set its pushkey.
	// PusherLoggedOut is a pusher that was removed since its device is logged out. The error
	// is a service.RemovedPusher.
	PusherTaken
	PusherLoggedOut

	// DeliveredLate is a NotificationLate, reported at most ten times in half a minute. The
	// error is a delivery.LateError.
	DeliveredLate
)

var problems = [...]string{
	FeedDisconnected:         "change feed disconnected from Redis, reconnecting",
	ListenerPanicked:         "change listener panicked",
	PushkeysUnread:           "pushkeys cannot be read, their pushers count as not taken",
	ImportIncomplete:         "rules or pushers of a user were not imported",
	ClientSetting:            "a setting of the Redis client will hurt",
	NoDurability:             "no change will be acknowledged",
	RedisEvicts:              "Redis may evict keys",
	ClockDiffers:             "the clocks of this host and of Redis differ",
	ClockUnknown:             "the clock of Redis cannot be read",
	MasterSkipped:            "a Redis master does not reply",
	DeliveryDelayed:          "notifications are delayed",
	MailsDelayed:             "mails are delayed",
	KindNotSent:              "notifications wait for a kind of pusher that this host does not send",
	NotificationsUnconfirmed: "notifications are not confirmed by replicas or a disk",
	TooManyRejections:        "a push gateway rejects too many pushkeys of an app, no more are removed",
	PusherRemoved:            "pusher removed, its gateway has rejected the pushkey",
	PusherTaken:              "pusher removed, another user has set its pushkey",
	PusherLoggedOut:          "pusher removed, its device is logged out",
	DeliveredLate:            "notification delivered late",
}

// String returns the log message.
func (p Problem) String() string {
	if p < 0 || int(p) >= len(problems) {
		return "unknown problem"
	}
	return problems[p]
}

// Problems returns all problems.
func Problems() []Problem {
	all := make([]Problem, len(problems))
	for i := range all {
		all[i] = Problem(i)
	}
	return all
}

// IsFault reports whether the problem lasts until an operator acts.
func (p Problem) IsFault() bool { return p == ListenerPanicked || p == TooManyRejections }

// IsRoutine reports whether the problem needs no operator and is only logged for
// information.
func (p Problem) IsRoutine() bool {
	return p == PusherRemoved || p == PusherTaken || p == PusherLoggedOut || p == DeliveredLate
}

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
