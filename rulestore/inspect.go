package rulestore

import (
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Event is a stored event as the store reads it.
type Event struct {
	Rules pushrule.Ruleset
	Found bool // whether there is a content; without, the user counts as one without rules
	Stamp commit.Stamp
}

// Reader reads stored events without a store, each text of a rule once. It is
// safe for concurrent use.
type Reader struct{ cache *pushrule.ReadCache }

// NewReader returns a reader.
func NewReader() *Reader { return &Reader{pushrule.NewReadCache()} }

// Read reads a stored event. Errors: [pushrule.Unreadable].
func (r *Reader) Read(text string) (Event, error) {
	e, err := readEvent(text, r.cache)
	return Event{e.rules, e.found, e.last}, err
}

// EventOf returns an event with rules as the store writes it, without a stamp.
func EventOf(rules pushrule.Ruleset) string {
	e := event{rules: rules, found: true}
	return e.with("")
}

// Same reports whether two events are the same beside their stamps. Those that
// cannot be read are, if they are equal.
func (r *Reader) Same(a, b string) bool {
	if a == b {
		return true
	}
	first, firstErr := readEvent(a, r.cache)
	second, secondErr := readEvent(b, r.cache)
	return firstErr == nil && secondErr == nil && first.with("") == second.with("")
}
