// Package match evaluates push rules: it finds the actions of an event for a user, and
// explains them (Matrix specification, v1.17 and later, client-server API, "Push
// Notifications").
//
// Compile a rule set once, read an event once, and evaluate any set on any event:
//
//	rules := match.Compile(set)
//	event, err := match.ReadEvent(text)
//	result := rules.Evaluate(event, match.Facts{User: user})
//
// [EvaluateAll] evaluates for the members of a room; a [Cache] holds the sets of many
// users. The package does no I/O and uses no clock.
package match

import (
	"strings"

	"github.com/pushfx/pushfx/module/pushrule"
)

// Result is the first matching rule in the order of the specification. The zero value
// means that no rule matches. It holds a copy of what it says of the rule: keeping a Result
// does not keep the rule set in memory.
type Result struct {
	rule       *matched
	incomplete bool
}

// matched is a copy of what a [Result] says of a rule.
type matched struct {
	kind    pushrule.Kind
	id      string
	outcome outcome
}

// Matched reports whether a rule matches.
func (r Result) Matched() bool { return r.rule != nil }

// Rule returns the kind and the id of the matching rule, both empty without one.
func (r Result) Rule() (kind pushrule.Kind, id string) {
	if r.rule == nil {
		return "", ""
	}
	return r.rule.kind, r.rule.id
}

// Actions returns the rule's actions without the historical actions "dont_notify" and
// "coalesce" (Matrix specification, "Historical Actions"). Do not change them.
func (r Result) Actions() []pushrule.Action {
	if r.rule == nil {
		return nil
	}
	return r.rule.outcome.actions
}

// Notify reports whether the event generates a notification.
func (r Result) Notify() bool { return r.rule != nil && r.rule.outcome.notify }

// Highlight reports whether the tweak highlight is true or has no value, even if the
// rule does not notify.
func (r Result) Highlight() bool { return r.rule != nil && r.rule.outcome.highlight }

// Sound returns the tweak sound, empty if it is not a string.
func (r Result) Sound() string {
	if r.rule == nil {
		return ""
	}
	return r.rule.outcome.sound
}

// Incomplete reports whether the evaluation reached the work limit for one user and one
// event, a few milliseconds. Untested patterns do not match. Only many near matches in
// a long text reach the limit.
func (r Result) Incomplete() bool { return r.incomplete }

// Evaluate returns the result for an event; a user's own event has none. It allocates
// only for bodies, names and patterns of unusual size.
func (r *Rules) Evaluate(event *Event, facts Facts) Result {
	s := newSubject(event, facts)
	if s.isOwn() {
		return Result{}
	}
	return r.evaluate(&s)
}

func (r *Rules) evaluate(s *subject) Result {
	found := r.first(s)
	return Result{r.matched(found), s.meter.exhausted}
}

// matched returns the copy of a rule, which it makes when the rule matches for the first time.
// It returns nil for len(r.rules).
func (r *Rules) matched(at int32) *matched {
	if int(at) == len(r.rules) {
		return nil
	}
	if m := r.copies[at].Load(); m != nil {
		return m
	}
	rule := &r.rules[at]
	r.copies[at].CompareAndSwap(nil, &matched{rule.kind, strings.Clone(rule.id), rule.outcome.clone()})
	return r.copies[at].Load()
}

func (s *subject) isOwn() bool {
	sender, found := s.event.text(&wellKnown[slotSender])
	return found && sender == string(s.facts.User)
}

// first returns the index of the first matching rule, or len(r.rules).
func (r *Rules) first(s *subject) int32 {
	s.meter.spend(r.work)
	bound := min(r.firstByText(r.rooms, s, slotRoomID), r.firstByText(r.senders, s, slotSender))
	for _, i := range r.unindexed {
		if i >= bound {
			break
		}
		if r.rules[i].holds(s) {
			bound = i
			break
		}
	}
	return r.bodies.first(r.rules, s, bound)
}

// firstByText returns the rule for the event's room or sender, or len(r.rules).
func (r *Rules) firstByText(rules map[string]int32, s *subject, name slot) int32 {
	if len(rules) > 0 {
		if text, found := s.event.text(&wellKnown[name]); found {
			if i, found := rules[text]; found {
				return i
			}
		}
	}
	return int32(len(r.rules))
}
