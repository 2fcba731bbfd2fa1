package stored

import (
	"errors"
	"maps"
	"slices"

	"github.com/pushfx/pushfx/module/pusher"
)

// RevisionField is the field of a user's hash with the revision. Other fields begin
// with a bracket; see [pusher.Key.Field].
const RevisionField = revisionMember

// Hash is the content of a user's hash of pushers.
type Hash struct {
	Pushers  pusher.List // the readable pushers
	Revision Revision

	// Unreadable are the names of unreadable fields, which contain pushkeys. With any,
	// the service treats the whole hash as unreadable.
	Unreadable []string
	Err        error // of the first unreadable field, from [pusher.Unreadable]; or [fault.OtherVersionError]
}

// ReadHash reads all readable fields of a user's hash, and nothing of a hash of another
// form.
func ReadHash(fields map[string]string) (h Hash) {
	h.Revision = ReadRevision(fields[RevisionField])
	if h.Revision.Version == 0 {
		if err := CheckForm(fields); err != nil {
			return Hash{Err: err}
		}
	}
	pushers, bytes := make([]pusher.Pusher, 0, len(fields)), 0
	for field, text := range fields {
		if field == RevisionField {
			continue
		}
		p, err := pusher.ReadStored(text)
		if err == nil && p.Field() != field {
			err = errors.New("the field is not the pusher's key")
		}
		if err == nil {
			pushers, bytes = append(pushers, p), bytes+len(field)+len(text)
			continue
		}
		h.Unreadable = append(h.Unreadable, field)
		if field == slices.Min(h.Unreadable) {
			h.Err = pusher.Unreadable(err)
		}
	}
	slices.Sort(h.Unreadable)
	list := pusher.NewList(pushers...)
	h.Pushers = list.WithBytes(bytes)
	return h
}

// HashFields copies a hash's fields without the revision.
func HashFields(fields map[string]string) map[string]string {
	left := maps.Clone(fields)
	delete(left, RevisionField)
	return left
}

// PusherField returns the stored field and value of a pusher.
func PusherField(p pusher.Pusher) (field, text string) {
	return p.Field(), string(p.AppendStored(nil))
}
