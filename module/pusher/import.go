package pusher

import (
	"fmt"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// ErrTwice is for the second pusher of a key among those that are imported.
var ErrTwice = fault.New(fault.InvalidParam, "The user has another pusher of this key.")

// ErrTaken is for a pusher that is imported and whose pushkey another user has
// taken since.
var ErrTaken = fault.New(fault.InvalidParam, "Another user has taken the pushkey.")

// maxImportDepth is how deep a pusher may nest, as in a request of a client.
const maxImportDepth = 64

// ProfileTag returns the member of [Pusher.Extra] for a profile tag.
func ProfileTag(tag string) Member {
	return Member{Name: "profile_tag", Value: string(strictjson.AppendString(nil, tag))}
}

// readSubmitted reads what a client submits to set a pusher.
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

// CheckImported returns a pusher of another server as the service keeps it. It
// refuses what no client may set: what the policy does not allow, and Data or
// Extra that are no JSON. Members of Extra whose names belong to the server go.
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
		return Pusher{}, fault.New(fault.BadJSON, "Want UTF-8.")
	}
	kept.Device, kept.SetAt = p.Device, p.SetAt
	return kept, l.Check(kept)
}
