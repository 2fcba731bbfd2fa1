package fold

import (
	"cmp"
	"maps"
	"slices"
)

// The limits of a record.
const (
	// MaxNotifications bounds the unread notifications that a record keeps of a room, its
	// read marks of threads and its redactions. Above it, a room keeps the newest
	// notifications of the main timeline, then highlights, then the newest of each thread,
	// then the newest of all. The others only count.
	MaxNotifications = 200

	// MaxBytes bounds the text of a record; see [Record.Text].
	MaxBytes = 512 << 10

	maxInviteBytes = 32 << 10 // of the rooms with an invite in a record
	maxActionBytes = 32 << 10 // of the actions in a record that are not in knownActions
	maxSeen        = 50       // highlights of a user that have been read
	maxSeenBytes   = 8 << 10
)

// omission counts notifications of a thread that a room does not keep: without highlight,
// and with one.
type omission struct {
	n    [2]int
	upTo [2]int64 // the positions of the newest ones
}

func class(highlight bool) int {
	if highlight {
		return 1
	}
	return 0
}

func (o omission) counts() Counts { return Counts{o.n[0] + o.n[1], o.n[1]} }

func (o omission) isRead(mark int64) bool { return max(o.upTo[0], o.upTo[1]) <= mark }

// plus adds notifications. Their number is bounded, because it comes from stored data.
func (o omission) plus(more omission) omission {
	for i := range o.n {
		o.n[i] = min(o.n[i]+more.n[i], maxOmitted)
		o.upTo[i] = max(o.upTo[i], more.upTo[i])
	}
	return o
}

const maxOmitted = 1 << 30

// read removes the omitted notifications up to a position. Of these, only their number and
// the last position are known: a position before the last one leaves one notification.
func (o omission) read(position int64) omission {
	for i := range o.n {
		if position >= o.upTo[i] {
			o.n[i], o.upTo[i] = 0, 0
		} else {
			o.n[i] = min(o.n[i], 1)
		}
	}
	return o
}

// markOfOmitted returns the position up to which omitted notifications are read. Threads
// whose names are omitted count in the main timeline, and are read with it.
func (r *Room) markOfOmitted(thread string) int64 {
	if thread == All {
		thread = Main
	}
	return r.mark(thread)
}

func (r *Room) readOmitted(thread string, position int64) {
	for of, o := range r.omitted {
		if thread == All || thread == of || thread == Main && of == All {
			r.omitted[of] = o.read(position)
		}
	}
}

// hasOmitted reports whether the room has omitted a notification, which is now repeated.
func (r *Room) hasOmitted(n Notification) bool {
	i := class(n.Highlight)
	return n.Position <= r.omitted[n.Thread].upTo[i] || n.Thread != Main && n.Position <= r.omitted[All].upTo[i]
}

func (r *Room) omit(thread string, more omission) {
	if r.omitted == nil {
		r.omitted = map[string]omission{}
	}
	r.omitted[thread] = r.omitted[thread].plus(more)
}

// limit bounds what the room keeps. With limit 0, it keeps its most important notification
// and its counts.
func (r *Room) limit(limit int) {
	if keep := max(limit, 1); r.kept() > keep {
		r.unpack()
		r.keep(keep)
	}
	r.limitOmitted(limit)
	keepMost(r.threads, limit, cmp.Compare)
	keepMost(r.redacted, limit, cmp.Compare)
}

// keepMost removes the entries with the smallest values. A removed read mark of a thread is
// not missed: the notifications that it made read have been removed before.
func keepMost[K cmp.Ordered, V any](entries map[K]V, limit int, compare func(a, b V) int) {
	if len(entries) <= limit {
		return
	}
	keys := slices.SortedFunc(maps.Keys(entries), func(a, b K) int {
		return cmp.Or(-compare(entries[a], entries[b]), cmp.Compare(a, b))
	})
	for _, key := range keys[limit:] {
		delete(entries, key)
	}
}

// keep keeps the most important notifications, up to limit, and only counts the others. The
// order of importance: invites; the newest of the main timeline, up to a quarter of the
// limit; highlights; the newest of each thread, up to a twentieth of the limit; all others.
// Within each rank, the newest come first.
func (r *Room) keep(limit int) {
	type ranked struct {
		rank int
		Notification
	}
	all, ofThread := make([]ranked, 0, len(r.unread)), map[string]int{}
	for _, n := range slices.Backward(r.unread) {
		rank := 4
		switch newest := ofThread[n.Thread]; {
		case n.Invite:
			rank = 0
		case n.Thread == Main && newest < limit/4:
			rank = 1
		case n.Highlight:
			rank = 2
		case newest < limit/20:
			rank = 3
		}
		ofThread[n.Thread]++
		all = append(all, ranked{rank, n})
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	r.unread = r.unread[:0]
	for i, n := range all {
		if i < limit {
			r.unread = append(r.unread, n.Notification)
			continue
		}
		var o omission
		o.n[class(n.Highlight)], o.upTo[class(n.Highlight)] = 1, n.Position
		r.omit(n.Thread, o)
	}
	slices.SortFunc(r.unread, byPosition)
}

// limitOmitted bounds the names of threads with omitted notifications. The threads with the
// newest ones keep their names.
func (r *Room) limitOmitted(limit int) {
	if len(r.omitted) <= limit {
		return
	}
	named := maps.Clone(r.omitted)
	delete(named, Main)
	delete(named, All)
	keepMost(named, limit, func(a, b omission) int { return cmp.Compare(max(a.upTo[0], a.upTo[1]), max(b.upTo[0], b.upTo[1])) })
	for thread, o := range r.omitted {
		if _, isNamed := named[thread]; !isNamed && thread != Main && thread != All {
			delete(r.omitted, thread)
			r.omit(All, o)
		}
	}
}

// limitSeen bounds the highlights that have been read. The newest stay.
func (r *Record) limitSeen() {
	n, bytes := 0, 0 // at most
	for id, room := range r.rooms {
		n += len(room.seen)
		for _, seen := range room.seen {
			bytes += seenBytes + len(id) + len(seen.Thread)
		}
	}
	if n <= maxSeen && bytes <= maxSeenBytes {
		return
	}
	type seen struct {
		room string
		Notification
	}
	all := make([]seen, 0, n)
	for id, room := range r.rooms {
		for _, n := range room.seen {
			all = append(all, seen{id, n})
		}
		room.seen = nil
	}
	slices.SortFunc(all, func(a, b seen) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.room, b.room), cmp.Compare(b.Position, a.Position))
	})
	bytes = 0
	isCounted := map[[2]string]bool{} // threads, by room and name
	for i, n := range all {
		bytes += seenBytes
		if room := r.rooms[n.room]; len(room.seen) == 0 {
			bytes += len(n.room)
		}
		if thread := [2]string{n.room, n.Thread}; !isCounted[thread] {
			bytes += len(n.Thread)
			isCounted[thread] = true
		}
		if i == maxSeen || bytes > maxSeenBytes {
			break
		}
		r.rooms[n.room].seen = append(r.rooms[n.room].seen, n.Notification)
	}
	for _, room := range r.rooms {
		slices.SortFunc(room.seen, byPosition)
	}
}

const seenBytes = 16 // of a highlight that has been read, besides its names
