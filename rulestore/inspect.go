package rulestore

import (
	"strings"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Keys names the keys of a store, for those who look at them from outside.
type Keys struct{ Prefix string }

// keyEnd is what follows the user id in a key.
const keyEnd = "}:m.push_rules"

// Event is the key of a user's event.
func (k Keys) Event(user mxid.UserID) string { return k.Prefix + key(user) }

// User returns the user whose event has a key; found is false for any other key.
func (k Keys) User(name string) (user mxid.UserID, found bool) {
	name, begins := strings.CutPrefix(name, k.Prefix+"account_data:{")
	name, ends := strings.CutSuffix(name, keyEnd)
	user = mxid.UserID(name)
	return user, begins && ends && user.Validate() == nil
}

// IsNext reports whether a key is one under which a large event comes before it
// takes the place of the one that is stored. It expires where it does not.
func (k Keys) IsNext(name string) bool {
	i := strings.LastIndex(name, keyEnd+":next:")
	if i < 0 {
		return false
	}
	_, found := k.User(name[:i+len(keyEnd)])
	return found
}

// Event is a stored event as the store reads it.
type Event struct {
	Rules pushrule.Ruleset
	Found bool // whether there is a content; without, the user counts as one without rules
	Stamp commit.Stamp
}

// Reader reads stored events without a store, each text of a rule once. It is
// safe for concurrent use.
type Reader struct{ known *pushrule.Known }

// NewReader returns a reader.
func NewReader() *Reader { return &Reader{pushrule.NewKnown()} }

// Read reads a stored event. Errors: [pushrule.Unreadable].
func (r *Reader) Read(text string) (Event, error) {
	e, err := readEvent(text, r.known)
	return Event{e.rules, e.found, e.last}, err
}

// EventOf returns an event with rules as the store writes it, without a stamp.
func EventOf(rules pushrule.Ruleset) string {
	e := event{rules: rules, found: true, isPlain: true}
	return e.with("")
}

// Same reports whether two events are the same beside their stamps. Those that
// cannot be read are, if they are equal.
func (r *Reader) Same(a, b string) bool {
	if a == b {
		return true
	}
	first, firstErr := readEvent(a, r.known)
	second, secondErr := readEvent(b, r.known)
	return firstErr == nil && secondErr == nil && first.with("") == second.with("")
}
