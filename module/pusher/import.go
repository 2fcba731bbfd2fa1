package pusher

import (
	"fmt"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// ErrTwice refuses the import of a second pusher of a key.
var ErrTwice = fault.New(fault.InvalidParam, "The user has another pusher of this key.")

// ErrTaken refuses the import of a pusher whose pushkey another user has taken in the
// meantime.
var ErrTaken = fault.New(fault.InvalidParam, "Another user has taken the pushkey.")

// maxImportDepth bounds the nesting of a pusher, as for clients' requests.
const maxImportDepth = 64

// ProfileTag returns a profile tag as a member for [Pusher.Extra].
func ProfileTag(tag string) Member {
	return Member{Name: "profile_tag", Value: string(strictjson.AppendString(nil, tag))}
}

func readSubmitted(text string) (Pusher, error) {
	if strictjson.Depth(text) > maxImportDepth {
		return Pusher{}, fault.New(fault.NotJSON, fmt.Sprintf("Nested deeper than %d.", maxImportDepth))
	}
	change, err := ReadChange(strictjson.NewReader(text), Document)
	switch {
	case err != nil:
		return Pusher{}, err
	case change.Pusher == nil:
		return Pusher{}, strictjson.WrongShape("kind", "a string")
	}
	return *change.Pusher, nil
}

// CheckImported converts a pusher from another server. It refuses a pusher outside the
// policy, and invalid JSON in Data or Extra. It drops members of Extra whose names this
// server sets itself.
func (l Policy) CheckImported(p Pusher) (Pusher, error) {
	if !strictjson.Valid(p.Data) {
		return Pusher{}, strictjson.WrongShape("data", "an object")
	}
	for _, m := range p.Extra {
		if !strictjson.Valid(m.Value) {
			return Pusher{}, strictjson.WrongShape(m.Name, "JSON")
		}
	}
	kept, err := readSubmitted(string(p.AppendJSON(nil)))
	if err != nil {
		return Pusher{}, err
	}
	if kept.Key != p.Key || !utf8.ValidString(p.Device) {
		return Pusher{}, fault.New(fault.BadJSON, "Invalid UTF-8.")
	}
	kept.Device, kept.SetAt, kept.Activated = p.Device, p.SetAt, p.Activated && p.Kind.NeedsAck()
	return kept, l.Check(kept)
}
