package pusher

import (
	"cmp"
	"math"
	"slices"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// List is a user's pushers in order of creation. The zero value is an empty list.
// Methods that change it are not safe for concurrent use.
type List struct {
	pushers []Pusher
	bytes   int // of the stored pushers; 0: unknown
}

// NewList returns a list of the pushers, sorted by creation.
func NewList(pushers ...Pusher) List {
	sorted := slices.Clone(pushers)
	slices.SortFunc(sorted, func(a, b Pusher) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.Pushkey, b.Pushkey))
	})
	return List{pushers: sorted}
}

// WithBytes returns the list with the total size of its stored pushers, so that Size
// need not compute it; see [Size].
func (l *List) WithBytes(bytes int) List { return List{l.pushers, bytes} }

// Len returns the number of pushers.
func (l *List) Len() int { return len(l.pushers) }

// All returns the pushers in order of creation. Do not change the slice.
func (l *List) All() []Pusher { return slices.Clip(l.pushers) }

// Equal reports whether both lists have equal pushers in the same order.
func (l *List) Equal(other List) bool {
	return slices.EqualFunc(l.pushers, other.pushers, Pusher.Equal)
}

// EqualButClaims is [List.Equal] without Claim and SetAt, which change even when a
// client sets the same pusher again.
func (l *List) EqualButClaims(other List) bool {
	return slices.EqualFunc(l.pushers, other.pushers, func(p, q Pusher) bool {
		p.Claim, p.SetAt = q.Claim, q.SetAt
		return p.Equal(q)
	})
}

// Set replaces the pusher of the same key, or adds the pusher at the end. It sets
// Created.
func (l *List) Set(p Pusher) {
	pushers := slices.Clone(l.pushers)
	if i := l.index(p.Key); i >= 0 {
		p.Created = pushers[i].Created
		l.addBytes(p, 1)
		l.addBytes(pushers[i], -1)
		pushers[i] = p
	} else {
		p.Created = nextPlace(pushers)
		l.addBytes(p, 1)
		pushers = append(pushers, p)
	}
	l.pushers = pushers
}

// addBytes updates the list's size, if it is known, for an added (sign 1) or removed
// (sign -1) pusher.
func (l *List) addBytes(p Pusher, sign int) {
	if l.bytes > 0 || len(l.pushers) == 0 {
		l.bytes += sign * p.bytes()
	}
}

// bytes returns the size of the stored pusher with its field name in Redis.
func (p Pusher) bytes() int { return len(p.Field()) + len(p.AppendStored(nil)) }

// nextPlace returns the place after the last pusher. In a damaged list without a higher
// number, it first renumbers all pushers.
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

// Delete removes the pusher of a key and reports whether it existed.
func (l *List) Delete(key Key) bool {
	return len(l.Remove(func(p Pusher) bool { return p.Key == key })) > 0
}

// Pusher returns the pusher of a key.
func (l *List) Pusher(key Key) (p Pusher, found bool) {
	if i := l.index(key); i >= 0 {
		return l.pushers[i], true
	}
	return Pusher{}, false
}

// Remove removes and returns the pushers that match.
func (l *List) Remove(match func(Pusher) bool) (removed []Pusher) {
	var kept []Pusher
	for _, p := range l.pushers {
		if match(p) {
			l.addBytes(p, -1)
			removed = append(removed, p)
		} else {
			kept = append(kept, p)
		}
	}
	if l.pushers = kept; len(kept) == 0 {
		l.bytes = 0
	}
	return removed
}

// AppendJSON appends the list as a JSON array for clients.
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

// Size is the size of a user's pushers.
type Size struct {
	Pushers int // number of pushers
	Bytes   int // bytes of their stored forms with the names of fields
}

// Size returns the size of the list.
// Escapes can make a stored pusher six times as large as the submitted one.
func (l *List) Size() Size {
	s := Size{len(l.pushers), l.bytes}
	if l.bytes > 0 {
		return s
	}
	for _, p := range l.pushers {
		s.Bytes += p.bytes()
	}
	return s
}

func (l *List) index(key Key) int {
	return slices.IndexFunc(l.pushers, func(p Pusher) bool { return p.Key == key })
}

// Unreadable returns the error for an unreadable stored pusher. The cause must name
// fields, never values.
func Unreadable(cause error) error {
	return fault.New(fault.Database, "Invalid pusher in database: "+cause.Error())
}

// Field is a JSON array of app_id and pushkey. It names a pusher among the user's
// stored pushers. Never log it.
func (k Key) Field() string {
	b := strictjson.AppendString([]byte{'['}, k.AppID)
	b = strictjson.AppendString(append(b, ','), k.Pushkey)
	return string(append(b, ']'))
}
