// Package fold computes unread notifications from operations; its API may change at any
// time. It is pure: no Redis, no clock.
//
// Each [Op] has a text, and so has a [Record], the fold of operations. A list of texts
// begins with a record or an operation, and continues with operations. Operations may be
// repeated and reordered without effect: notifications are a set by room and position,
// and read marks are maxima. Two exceptions follow from the limits of a record. A
// redaction that [Record.Expire] has removed has no effect on a notification that is
// repeated later. Of a room with more than [MaxNotifications], the counts are "at least",
// and depend on when the operations were folded.
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
	Invite    bool   // the event invites the user to the room
	Actions   string // a JSON array; see [Notification]
}

// Notification is a notification of a user.
type Notification struct {
	Position  int64
	Time      int64 // of its first operation, in milliseconds
	Thread    string
	Highlight bool
	Invite    bool   // see [Op]
	Actions   string // of the push rule that notified, a JSON array
}

// Counts are the numbers of unread notifications.
type Counts struct{ Notifications, Highlights int }

// Room is what a list says about a room.
type Room struct {
	touched  int64 // the time of the newest operation
	all      int64 // read marks, 0 for none
	main     int64
	threads  map[string]int64
	unread   []Notification      // by position
	omitted  map[string]omission // by thread; in All, those of threads whose names are omitted, too
	redacted map[int64]int64     // positions, with the times of the redactions
	seen     []Notification      // highlights that have been read, by position
	isCut    bool                // whether a record had no place for all of unread

	isSorted bool
	packed   *packed // the encoded form of unread, until unread is needed
}

// Record is the fold of operations. It is not safe for concurrent use.
type Record struct {
	rooms map[string]*Room
	lost  int64 // the time at which a record had no place for unread rooms, 0 for never
}

// Fold folds a list, or only its operations in the given rooms. Errors: [ErrDamaged],
// [fault.OtherVersionError].
func Fold(texts []string, rooms ...string) (*Record, error) {
	wanted := func(string) bool { return true }
	if len(rooms) > 0 {
		set := make(map[string]bool, len(rooms))
		for _, room := range rooms {
			set[room] = true
		}
		wanted = func(room string) bool { return set[room] }
	}
	expected := expectedRooms(texts, rooms)
	r := &Record{rooms: make(map[string]*Room, expected)}
	for i, text := range texts {
		if i == 0 && IsRecord(text) {
			if err := r.read(text, wanted, expected); err != nil {
				return nil, err
			}
			continue
		}
		op, err := ReadOp(text)
		if err != nil {
			return nil, err
		}
		if wanted(op.Room) {
			r.apply(op)
		}
	}
	hasSeen := false
	for _, room := range r.rooms {
		room.settle(MaxNotifications)
		hasSeen = hasSeen || len(room.seen) > 0
	}
	if hasSeen && len(rooms) == 0 {
		r.limitSeen()
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
func (r *Record) Rooms() map[string]*Room {
	if r == nil {
		return nil
	}
	return r.rooms
}

// Expire drops redactions from before the time redacted. It drops rooms without
// notifications and redactions that had no operation since the time idle. Times are in
// milliseconds.
func (r *Record) Expire(idle, redacted int64) {
	maps.DeleteFunc(r.rooms, func(_ string, room *Room) bool {
		maps.DeleteFunc(room.redacted, func(_, at int64) bool { return at < redacted })
		return room.isEmpty() && len(room.redacted) == 0 && room.touched < idle
	})
	if r.lost < idle {
		r.lost = 0
	}
}

func (r *Record) apply(op Op) {
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
			room.redacted = map[int64]int64{}
		}
		room.redacted[op.Position] = max(room.redacted[op.Position], op.Time)
	case Notified:
		n := Notification{op.Position, op.Time, op.Thread, op.Highlight, op.Invite, op.Actions}
		if !room.hasOmitted(n) {
			room.unread = append(room.unread, n)
		}
	}
}

func (r *Room) raise(thread string, position int64) {
	if position <= r.mark(thread) {
		return
	}
	switch thread {
	case All:
		r.all = position
	case Main:
		r.main = position
	default:
		if r.threads == nil {
			r.threads = map[string]int64{}
		}
		r.threads[thread] = position
	}
	r.readOmitted(thread, position)
}

// IsRead reports whether an event needs no notification any more: a read mark is at or
// after its position, or it was redacted.
func (r *Room) IsRead(thread string, position int64) bool {
	return r != nil && (position <= r.mark(thread) || r.isRedacted(position))
}

func (r *Room) isRedacted(position int64) bool {
	_, found := r.redacted[position]
	return found
}

// mark returns the position up to which a thread is read.
func (r *Room) mark(thread string) int64 {
	if thread == Main {
		return max(r.all, r.main)
	}
	return max(r.all, r.threads[thread])
}

// Unread returns the unread notifications in the order of their positions, without
// those that only count. Do not change them.
func (r *Room) Unread() []Notification {
	r.unpack()
	return r.unread
}

// Seen returns highlights that have been read, in the order of their positions. Do not
// change them.
func (r *Room) Seen() []Notification { return r.seen }

// Len returns the number of unread notifications.
func (r *Room) Len() int {
	n := r.kept()
	for _, o := range r.omitted {
		n += o.counts().Notifications
	}
	return n
}

func (r *Room) kept() int {
	if r.packed != nil {
		return r.packed.n
	}
	return len(r.unread)
}

func (r *Room) isEmpty() bool { return r.kept()+len(r.omitted)+len(r.seen) == 0 }

// Touched returns the time of the newest operation, in milliseconds.
func (r *Room) Touched() int64 { return r.touched }

// Newest returns the position of the newest unread notification.
func (r *Room) Newest() (position int64) {
	if unread := r.Unread(); len(unread) > 0 {
		position = unread[len(unread)-1].Position
	}
	for _, o := range r.omitted {
		position = max(position, o.upTo[0], o.upTo[1])
	}
	return position
}

// Counts returns the counts of the main timeline, and of each thread with unread
// notifications by its root.
func (r *Room) Counts() (main Counts, threads map[string]Counts) {
	add := func(thread string, more Counts) {
		if thread == Main || thread == All {
			main = main.plus(more)
			return
		}
		if threads == nil {
			threads = map[string]Counts{}
		}
		threads[thread] = threads[thread].plus(more)
	}
	if r.packed != nil {
		main, threads = r.packed.counts()
	}
	for _, n := range r.unread {
		add(n.Thread, Counts{}.with(n))
	}
	for thread, o := range r.omitted {
		add(thread, o.counts())
	}
	return main, threads
}

func (c Counts) plus(more Counts) Counts {
	return Counts{c.Notifications + more.Notifications, c.Highlights + more.Highlights}
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
		r.settleNotifications()
	}
	if r.main <= r.all {
		r.main = 0
	}
	if r.entries() > 0 {
		maps.DeleteFunc(r.threads, func(_ string, mark int64) bool { return mark <= r.all })
		maps.DeleteFunc(r.omitted, func(thread string, o omission) bool { return o.isRead(r.markOfOmitted(thread)) })
		r.limit(limit)
	}
	if r.isCut && r.kept()+len(r.omitted) == 0 {
		r.isCut = false
	}
}

// settleNotifications sorts the notifications, and removes repeated, read and redacted
// ones. Highlights stay in seen after they were read.
func (r *Room) settleNotifications() {
	slices.SortFunc(r.unread, byPosition)
	r.unread = slices.CompactFunc(r.unread, isSamePosition)
	r.unread = slices.DeleteFunc(r.unread, func(n Notification) bool {
		isRead := n.Position <= r.mark(n.Thread)
		if isRead && n.Highlight {
			r.seen = append(r.seen, n)
		}
		return isRead || r.isRedacted(n.Position)
	})
	slices.SortFunc(r.seen, byPosition)
	r.seen = slices.CompactFunc(r.seen, isSamePosition)
	r.seen = slices.DeleteFunc(r.seen, func(n Notification) bool {
		_, isUnread := slices.BinarySearchFunc(r.unread, n, func(a, b Notification) int { return cmp.Compare(a.Position, b.Position) })
		return isUnread || r.isRedacted(n.Position)
	})
	r.isSorted = true
}

func isSamePosition(a, b Notification) bool { return a.Position == b.Position }

// byPosition orders by position. Notifications with the same position are ordered by time,
// then by the other fields, so that the order of operations has no effect.
func byPosition(a, b Notification) int {
	return cmp.Or(
		cmp.Compare(a.Position, b.Position), cmp.Compare(a.Time, b.Time), trueFirst(a.Highlight, b.Highlight),
		cmp.Compare(a.Thread, b.Thread), trueFirst(a.Invite, b.Invite), cmp.Compare(a.Actions, b.Actions),
	)
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
