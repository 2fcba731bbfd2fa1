// Package observe reports what the module does to whoever counts and traces it.
// All names that it reports come from small fixed sets, or from the host's
// routes: nothing that a client sends, and nothing about a user.
package observe

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module/fault"
)

// Observer is notified of what the module does. Its methods run within every
// request: they must not block, must not panic, and must be safe for concurrent
// use.
type Observer interface {
	// Begin is called when an operation begins. There are few operations, each is
	// always the same pointer, and none is changed, so that it can be a key. The
	// context that Begin returns is the operation's from then on; the function that
	// it returns is called once, when the operation has ended. The context that it
	// is given tells [Outcome.CallerGone] whether the caller is still there.
	Begin(ctx context.Context, op *Operation) (context.Context, func(Outcome))

	// Count is called for an event. Store is the store that it is about, one of
	// those of [Operation.Name], or empty.
	Count(event Event, store string)

	// Took is called with how long something took, and whether it succeeded.
	// Store is as for Count.
	Took(what Span, store string, took time.Duration, ok bool)
}

// Operation is what can be timed as a whole, and traced.
type Operation struct {
	Kind Kind

	// Name is a request's route as the host mounted it, with its parameters'
	// names, such as "/_matrix/client/v3/pushrules/global/:kind/:ruleId"; of a
	// store it is [PushRules], [Pushers] or [Pushkeys].
	Name string

	// Verb is a request's method, "OTHER" for those that no route has; of a
	// store it is "load", "load_many", "versions", "update" or "remove".
	Verb string
}

// Kind is a kind of operation.
type Kind int

// The kinds of operations.
const (
	Request Kind = iota // one that the route groups have answered
	Store               // one of a store, the module's or a host's own
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

// Event is what can be counted.
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

	events
)

// String is the event's name in snake case.
func (e Event) String() string {
	if e < 0 || e >= events {
		return "unknown"
	}
	return [...]string{"lost_race", "unknown_outcome", "missed_guess", "whole_read", "rule_set_created", "rule_set_imported", "rule_set_repaired"}[e]
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
)

// None is an observer that does nothing.
var None Observer = none{}

type none struct{}

func (none) Begin(ctx context.Context, _ *Operation) (context.Context, func(Outcome)) {
	return ctx, ignore
}
func (none) Count(Event, string)                    {}
func (none) Took(Span, string, time.Duration, bool) {}
func ignore(Outcome)                                {}

// Or returns the observer, or None if it is nil.
func Or(o Observer) Observer {
	if o == nil {
		return None
	}
	return o
}

// Join returns an observer that notifies all of several, of which [None] counts for
// nothing.
func Join(all ...Observer) Observer {
	all = slices.DeleteFunc(slices.Clone(all), func(o Observer) bool { return o == None })
	switch len(all) {
	case 0:
		return None
	case 1:
		return all[0]
	}
	return joined(all)
}

type joined []Observer

func (j joined) Begin(ctx context.Context, op *Operation) (context.Context, func(Outcome)) {
	ends := make([]func(Outcome), len(j))
	for i, o := range j {
		ctx, ends[i] = o.Begin(ctx, op)
	}
	return ctx, func(outcome Outcome) {
		for _, end := range ends {
			end(outcome)
		}
	}
}

func (j joined) Count(event Event, store string) {
	for _, o := range j {
		o.Count(event, store)
	}
}

func (j joined) Took(what Span, store string, took time.Duration, ok bool) {
	for _, o := range j {
		o.Took(what, store, took, ok)
	}
}
