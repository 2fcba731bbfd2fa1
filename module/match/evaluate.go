// Package match evaluates push rules: which actions does an event have for a
// user, and why (Matrix specification, v1.17 and later, client-server API,
// "Push Notifications").
//
// A rule set is compiled once, an event is read once, and then any set can be
// evaluated on any event:
//
//	rules := match.Compile(set)
//	event, err := match.ReadEvent(text)
//	result := rules.Evaluate(event, match.Facts{User: user})
//
// One pass over the body finds the keywords of all rules of a user, and an
// evaluation takes no memory of its own. [EvaluateAll] is for
// the members of a room, [Cache] for the rule sets of many users.
//
// The package does no I/O and knows no clock.
package match

import (
	"github.com/pushfx/pushfx/module/pushrule"
)

// Result is what an evaluation has found: the first rule, in the order of the
// specification, that matches the event, and its actions. The zero value
// means that no rule matches and nothing is done.
type Result struct {
	rule       *rule
	incomplete bool
}

// Matched reports whether a rule matches.
func (r Result) Matched() bool { return r.rule != nil }

// Rule returns the kind and the id of the rule that matches; both are empty
// if none does.
func (r Result) Rule() (kind pushrule.Kind, id string) {
	if r.rule == nil {
		return "", ""
	}
	return r.rule.kind, r.rule.id
}

// Actions returns the actions of the rule as they are stored, without the
// historical ones "dont_notify" and "coalesce" (Matrix specification,
// "Historical Actions"). Treat them as read-only.
func (r Result) Actions() []pushrule.Action {
	if r.rule == nil {
		return nil
	}
	return r.rule.outcome.actions
}

// Notify reports whether the event generates a notification.
func (r Result) Notify() bool { return r.rule != nil && r.rule.outcome.notify }

// Highlight reports whether the tweak highlight is set to true, or without a
// value. It is independent of [Result.Notify].
func (r Result) Highlight() bool { return r.rule != nil && r.rule.outcome.highlight }

// Sound returns the tweak sound; empty if it is not set to a string.
func (r Result) Sound() string {
	if r.rule == nil {
		return ""
	}
	return r.rule.outcome.sound
}

// Incomplete reports whether the rules would have cost more than one user's may
// cost on one event, which is a few milliseconds. Only many patterns that nearly
// match a long text get there. Patterns that were not tested count as not
// matching.
func (r Result) Incomplete() bool { return r.incomplete }

// Evaluate returns what the rules do with an event. A user's own events give
// nothing, whatever the rules are. It takes no memory, except for bodies, names
// and patterns of unusual size.
func (r *Rules) Evaluate(event *Event, facts Facts) Result {
	s := newSubject(event, facts)
	if s.isOwn() {
		return Result{}
	}
	return r.evaluate(&s)
}

func (r *Rules) evaluate(s *subject) Result {
	found := r.first(s)
	return Result{found, s.meter.exhausted}
}

// isOwn reports whether the event is the user's own.
func (s *subject) isOwn() bool {
	sender, found := s.event.text(&wellKnown[slotSender])
	return found && sender == string(s.facts.User)
}

// first returns the first rule that matches, nil if none does.
func (r *Rules) first(s *subject) *rule {
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
	bound = r.bodies.first(r.rules, s, bound)
	if int(bound) == len(r.rules) {
		return nil
	}
	return &r.rules[bound]
}

// firstByText returns the room or sender rule that is for the event's room or
// sender, the number of rules if there is none.
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
