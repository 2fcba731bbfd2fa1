// Package fold computes unread notifications from operations; its API may change at any
// time. It is pure: no Redis, no clock.
//
// Each [Op] has a text, and so has a [Record], the fold of operations. A list of texts
// begins with a record or an operation, and continues with operations. Operations may be
// repeated and reordered without effect: notifications are a set by room and position,
// and read marks are maxima. Two exceptions follow from the limits of a record. A
// redaction has no effect on a notification that is repeated after both were folded into
// a record. Of a room with more than [MaxNotifications], the count depends on when the
// operations were folded.
package fold

import (
	"cmp"
	"maps"
	"slices"
)

// The threads without a root. A notification is in [Main], or in a thread that its root
// names. Only a read mark can be for [All], which is every thread of the room.
const (
	Main = "main"
	All  = ""
)

// The limits of a record.
const (
	// MaxNotifications bounds the unread notifications of a room, and the read marks of its
	// threads. Beyond it, the oldest notifications go, those without highlight first.
	MaxNotifications = 200

	// MaxBytes bounds the text of a record. A longer record keeps fewer notifications of
	// each room: a half, a quarter, in the end one. If that is not enough, the rooms
	// without operations for the longest time go.
	MaxBytes = 256 << 10
)

// Kind is the kind of an operation.
type Kind byte

// The kinds of operations.
const (
	Notified Kind = 'n' // an event notified the user
	Read     Kind = 'r' // the user has read a thread up to the position
	Redacted Kind = 'f' // an event was redacted
)

// Op is an operation. Its strings have no byte 0.
type Op struct {
	Kind     Kind
	Room     string
	Position int64 // above 0
	Thread   string
	Time     int64 // in milliseconds, at least 0

	Highlight bool
	Actions   string // a JSON array; see [Notification]
}

// Notification is an unread notification.
type Notification struct {
	Position  int64
	Time      int64 // of its first operation, in milliseconds
	Thread    string
	Highlight bool
	Actions   string // of the push rule that notified, a JSON array
}

// Counts are the numbers of unread notifications.
type Counts struct{ Notifications, Highlights int }

// Room is what a list says about a room.
type Room struct {
	touched int64 // the time of the newest operation
	all     int64 // read marks, 0 for none
	main    int64
	threads map[string]int64
	unread  []Notification // by position

	isSorted bool
	redacted map[int64]bool // positions; a record has none

	packed *packed // the encoded form of unread, until unread is needed
}

// Record is the fold of operations. It is not safe for concurrent use.
type Record struct{ rooms map[string]*Room }

// Fold folds a list, or only its operations in the given rooms. Errors: [ErrDamaged],
// [ErrLaterForm].
func Fold(texts []string, rooms ...string) (Record, error) {
	wanted := func(string) bool { return true }
	if len(rooms) > 0 {
		set := make(map[string]bool, len(rooms))
		for _, room := range rooms {
			set[room] = true
		}
		wanted = func(room string) bool { return set[room] }
	}
	expected := expectedRooms(texts, rooms)
	r := Record{make(map[string]*Room, expected)}
	for i, text := range texts {
		if i == 0 && IsRecord(text) {
			if err := r.read(text, wanted, expected); err != nil {
				return Record{}, err
			}
			continue
		}
		op, err := ReadOp(text)
		if err != nil {
			return Record{}, err
		}
		if wanted(op.Room) {
			r.apply(op)
		}
	}
	for _, room := range r.rooms {
		room.settle(MaxNotifications)
	}
	return r, nil
}

// expectedRooms estimates the number of rooms, so that the map need not grow.
func expectedRooms(texts, rooms []string) int {
	const roomBytes = 70 // of a record
	switch {
	case len(rooms) > 0:
		return len(rooms)
	case len(texts) > 0:
		return len(texts[0]) / roomBytes
	}
	return 0
}

// Rooms returns the rooms of the record. Do not change them.
func (r Record) Rooms() map[string]*Room { return r.rooms }

// DropIdle drops rooms without unread notifications and without operations since a time
// in milliseconds.
func (r Record) DropIdle(since int64) {
	maps.DeleteFunc(r.rooms, func(_ string, room *Room) bool { return room.Len() == 0 && room.touched < since })
}

func (r Record) apply(op Op) {
	room := r.rooms[op.Room]
	if room == nil {
		room = &Room{}
		r.rooms[op.Room] = room
	}
	room.unpack()
	room.touched = max(room.touched, op.Time)
	room.isSorted = false
	switch op.Kind {
	case Read:
		room.raise(op.Thread, op.Position)
	case Redacted:
		if room.redacted == nil {
			room.redacted = map[int64]bool{}
		}
		room.redacted[op.Position] = true
	case Notified:
		room.unread = append(room.unread, Notification{op.Position, op.Time, op.Thread, op.Highlight, op.Actions})
	}
}

func (r *Room) raise(thread string, position int64) {
	switch thread {
	case All:
		r.all = max(r.all, position)
	case Main:
		r.main = max(r.main, position)
	default:
		if r.threads == nil {
			r.threads = map[string]int64{}
		}
		r.threads[thread] = max(r.threads[thread], position)
	}
}

// IsRead reports whether a read mark is at or after a position.
func (r *Room) IsRead(thread string, position int64) bool {
	switch {
	case r == nil:
		return false
	case position <= r.all:
		return true
	case thread == Main:
		return position <= r.main
	}
	return position <= r.threads[thread]
}

// Unread returns the unread notifications in the order of their positions. Do not
// change them.
func (r *Room) Unread() []Notification {
	r.unpack()
	return r.unread
}

// Len returns the number of unread notifications.
func (r *Room) Len() int {
	if r.packed != nil {
		return r.packed.n
	}
	return len(r.unread)
}

// Touched returns the time of the newest operation, in milliseconds.
func (r *Room) Touched() int64 { return r.touched }

// Counts returns the counts of the main timeline, and of each thread with unread
// notifications by its root.
func (r *Room) Counts() (main Counts, threads map[string]Counts) {
	if r.packed != nil {
		return r.packed.counts()
	}
	for _, n := range r.unread {
		if n.Thread == Main {
			main = main.with(n)
			continue
		}
		if threads == nil {
			threads = map[string]Counts{}
		}
		threads[n.Thread] = threads[n.Thread].with(n)
	}
	return main, threads
}

func (c Counts) with(n Notification) Counts {
	c.Notifications++
	if n.Highlight {
		c.Highlights++
	}
	return c
}

// settle brings the room into the form that does not depend on the order of operations.
func (r *Room) settle(limit int) {
	if !r.isSorted {
		r.settleUnread()
	}
	maps.DeleteFunc(r.threads, func(_ string, mark int64) bool { return mark <= r.all })
	if r.main <= r.all {
		r.main = 0
	}
	if r.Len() > limit {
		r.unpack()
		slices.SortFunc(r.unread, byImportance)
		r.unread = r.unread[:limit]
		slices.SortFunc(r.unread, byPosition)
	}
	r.limitMarks(limit)
}

// settleUnread sorts the notifications and removes repeated, read and redacted ones.
func (r *Room) settleUnread() {
	slices.SortFunc(r.unread, byPosition)
	r.unread = slices.CompactFunc(r.unread, func(a, b Notification) bool { return a.Position == b.Position })
	r.unread = slices.DeleteFunc(r.unread, func(n Notification) bool {
		return r.redacted[n.Position] || r.IsRead(n.Thread, n.Position)
	})
	r.redacted, r.isSorted = nil, true
}

// limitMarks removes the lowest read marks of threads. A removed mark is not missed,
// because the notifications that it made read have been removed before.
func (r *Room) limitMarks(limit int) {
	if len(r.threads) <= limit {
		return
	}
	byMark := slices.SortedFunc(maps.Keys(r.threads), func(a, b string) int {
		return cmp.Or(-cmp.Compare(r.threads[a], r.threads[b]), cmp.Compare(a, b))
	})
	for _, thread := range byMark[limit:] {
		delete(r.threads, thread)
	}
}

// byPosition orders by position. Notifications with the same position are ordered by time,
// then by the other fields, so that the order of operations has no effect.
func byPosition(a, b Notification) int {
	return cmp.Or(
		cmp.Compare(a.Position, b.Position), cmp.Compare(a.Time, b.Time), highlightFirst(a, b),
		cmp.Compare(a.Thread, b.Thread), cmp.Compare(a.Actions, b.Actions),
	)
}

func byImportance(a, b Notification) int {
	return cmp.Or(highlightFirst(a, b), cmp.Compare(b.Position, a.Position))
}

func highlightFirst(a, b Notification) int {
	switch {
	case a.Highlight == b.Highlight:
		return 0
	case a.Highlight:
		return -1
	}
	return 1
}
