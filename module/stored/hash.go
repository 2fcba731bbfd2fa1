package stored

import (
	"errors"
	"maps"
	"slices"

	"github.com/pushfx/pushfx/module/pusher"
)

// RevisionField is the field of a user's hash that holds the revision. The fields
// of pushers begin with a bracket; see [pusher.Key.Field].
const RevisionField = revisionMember

// Hash is what a user's hash of pushers holds.
type Hash struct {
	Pushers  pusher.List // those that can be read
	Revision Revision

	// Unreadable are the fields that cannot be read; they hold pushkeys. To the
	// service, the hash is unreadable as a whole if there are any.
	Unreadable []string
	Err        error // of the first of Unreadable, from [pusher.Unreadable]; nil if there is none
}

// ReadHash reads a user's hash, as far as that is possible.
func ReadHash(fields map[string]string) (h Hash) {
	pushers := make([]pusher.Pusher, 0, len(fields))
	for field, text := range fields {
		if field == RevisionField {
			h.Revision = ReadRevision(text)
			continue
		}
		p, err := pusher.ReadStored(text)
		if err == nil && p.Field() != field {
			err = errors.New("the field is not the pusher's key")
		}
		if err == nil {
			pushers = append(pushers, p)
			continue
		}
		h.Unreadable = append(h.Unreadable, field)
		if field == slices.Min(h.Unreadable) {
			h.Err = pusher.Unreadable(err)
		}
	}
	slices.Sort(h.Unreadable)
	h.Pushers = pusher.NewList(pushers...)
	return h
}

// HashFields returns the fields of a hash without its revision, a copy.
func HashFields(fields map[string]string) map[string]string {
	left := maps.Clone(fields)
	delete(left, RevisionField)
	return left
}

// PusherField returns the field of a hash that keeps a pusher, and its value.
func PusherField(p pusher.Pusher) (field, text string) {
	return p.Field(), string(p.AppendStored(nil))
}
