package pusher

import (
	"cmp"
	"math"
	"slices"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// List is one user's pushers in order of creation. The zero value is an empty
// list, ready to use. Methods that change it are not safe for concurrent use
// with others.
type List struct {
	pushers []Pusher
	others  Size // see WithOthers
}

// NewList returns the list of the given pushers, in order of creation.
func NewList(pushers ...Pusher) List {
	sorted := slices.Clone(pushers)
	slices.SortFunc(sorted, func(a, b Pusher) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.Pushkey, b.Pushkey))
	})
	return List{pushers: sorted}
}

// WithOthers returns the list as a part of what a user has: [List.Size] counts the
// others, too, which the list does not have.
func (l *List) WithOthers(others Size) List { return List{l.pushers, others} }

// Only returns the part of the list that has the pusher of a key, or nothing; see
// [List.WithOthers].
func (l *List) Only(key Key) List {
	only, others := List{}, l.WithOthers(Size{})
	for _, p := range others.Remove(func(p Pusher) bool { return p.Key == key }) {
		only = NewList(p)
	}
	return only.WithOthers(others.Size())
}

// Len returns the number of pushers.
func (l *List) Len() int { return len(l.pushers) }

// All returns the pushers in order of creation. The slice is read-only.
func (l *List) All() []Pusher { return slices.Clip(l.pushers) }

// Set adds a pusher at the end, or replaces the one of the same key in its
// place. It sets Created.
func (l *List) Set(p Pusher) {
	pushers := slices.Clone(l.pushers)
	if i := l.index(p.Key); i >= 0 {
		p.Created = pushers[i].Created
		pushers[i] = p
	} else {
		p.Created = nextPlace(pushers)
		pushers = append(pushers, p)
	}
	l.pushers = pushers
}

// nextPlace returns the place behind all of pushers. Where there is none left,
// which only a damaged store can bring about, they are counted anew.
func nextPlace(pushers []Pusher) int64 {
	n := len(pushers)
	if n == 0 {
		return 1
	}
	if pushers[n-1].Created == math.MaxInt64 {
		for i := range pushers {
			pushers[i].Created = int64(i + 1)
		}
	}
	return pushers[n-1].Created + 1
}

// Delete removes the pusher of a key and reports whether there was one.
func (l *List) Delete(key Key) bool {
	return len(l.Remove(func(p Pusher) bool { return p.Key == key })) > 0
}

// Pusher returns the pusher of a key; found is false if there is none.
func (l *List) Pusher(key Key) (p Pusher, found bool) {
	if i := l.index(key); i >= 0 {
		return l.pushers[i], true
	}
	return Pusher{}, false
}

// Remove removes the pushers that match, and returns them.
func (l *List) Remove(match func(Pusher) bool) (removed []Pusher) {
	var kept []Pusher
	for _, p := range l.pushers {
		if match(p) {
			removed = append(removed, p)
		} else {
			kept = append(kept, p)
		}
	}
	l.pushers = kept
	return removed
}

// AppendJSON appends the list as clients see it, a JSON array.
func (l *List) AppendJSON(dst []byte) []byte {
	dst = append(dst, '[')
	for i, p := range l.pushers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = p.AppendJSON(dst)
	}
	return append(dst, ']')
}

// Size is how much a user's pushers take.
type Size struct {
	Pushers int // their number
	Bytes   int // that they take where they are stored, each with its field
}

// Size returns the size of the list, and of the others if it is a part. Escapes make
// a pusher up to six times as large as it was submitted.
func (l *List) Size() Size {
	s := l.others
	var stored []byte
	for _, p := range l.pushers {
		stored = p.AppendStored(stored[:0])
		s.Bytes += len(p.Field()) + len(stored)
	}
	s.Pushers += len(l.pushers)
	return s
}

func (l *List) index(key Key) int {
	return slices.IndexFunc(l.pushers, func(p Pusher) bool { return p.Key == key })
}

// Unreadable is the error for a stored pusher that cannot be read. The cause
// names fields, never their values.
func Unreadable(cause error) error {
	return fault.New(fault.Database, "Invalid pusher in database: "+cause.Error())
}

// Field is the key as one string that no other key has: a JSON array of the
// app_id and the pushkey. It names the pusher within its user's stored
// pushers, and holds the pushkey, so it never belongs in a log.
func (k Key) Field() string {
	b := strictjson.AppendString([]byte{'['}, k.AppID)
	b = strictjson.AppendString(append(b, ','), k.Pushkey)
	return string(append(b, ']'))
}
