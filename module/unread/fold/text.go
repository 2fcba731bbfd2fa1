package fold

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"maps"
	"slices"
)

// roomText is a room in the text of a record.
type roomText struct {
	id    string
	room  *Room
	text  []byte
	limit int // of the room's notifications
}

// Text returns the stored text of the record, of at most [MaxBytes]. Rooms with an invite
// have a share of their own, in which the oldest give way. If the others are too long,
// rooms without notifications are removed. Then the largest room is shortened, again and
// again. A room that is shortened most has its counts and its most important
// notification; only if all rooms together are still too long, rooms are removed.
func (r *Record) Text() string {
	w := newWriter()
	texts := make([]roomText, 0, len(r.rooms))
	var all, body []byte
	ends := make([]int, 0, len(r.rooms))
	for _, id := range slices.Sorted(maps.Keys(r.rooms)) {
		room := r.rooms[id]
		body = w.room(appendString(body[:0], id), room)
		all = append(binary.AppendUvarint(all, uint64(len(body))), body...)
		texts, ends = append(texts, roomText{id: id, room: room, limit: MaxNotifications}), append(ends, len(all))
	}
	from := 0
	for i, end := range ends {
		texts[i].text, from = all[from:end], end
	}
	if texts, isChanged := r.shorten(w, texts); isChanged {
		all = nil
		for _, p := range texts {
			all = append(all, p.text...)
		}
	}
	return withChecksum(string(append(w.head(r.lost), all...)))
}

func (w *writer) head(lost int64) []byte {
	b := binary.AppendUvarint(nil, uint64(lost))
	b = binary.AppendUvarint(b, uint64(len(w.own)))
	for _, actions := range w.own {
		b = appendString(b, actions)
	}
	return b
}

func (w *writer) encode(p *roomText) {
	body := w.room(appendString(nil, p.id), p.room)
	p.text = append(binary.AppendUvarint(nil, uint64(len(body))), body...)
}

// IsShortened reports whether the record had no place for some unread notifications of
// rooms, apart from [MaxNotifications].
func (r *Record) IsShortened() bool {
	if r.lost > 0 {
		return true
	}
	for _, room := range r.rooms {
		if room.isCut {
			return true
		}
	}
	return false
}

// shorten makes the rooms fit into a record, and returns the remaining ones.
func (r *Record) shorten(w *writer, texts []roomText) (remaining []roomText, isChanged bool) {
	space, all, invites := MaxBytes-header-checksum-len(w.head(r.newest())), 0, 0
	for _, p := range texts {
		all += len(p.text)
		if p.room.isInvite() {
			invites += len(p.text)
		}
	}
	if all <= space && invites <= maxInviteBytes {
		return texts, false
	}
	remove := func(bytes, limit int, mayGo func(*Room) bool) (removed int) {
		byAge := slices.Clone(texts)
		slices.SortStableFunc(byAge, func(a, b roomText) int { return cmp.Compare(a.room.touched, b.room.touched) })
		gone := map[string]bool{}
		for _, p := range byAge {
			if bytes-removed > limit && mayGo(p.room) {
				gone[p.id] = true
				removed += len(p.text)
				if p.room.Len() > 0 {
					r.lost = r.newest()
				}
			}
		}
		maps.DeleteFunc(r.rooms, func(id string, _ *Room) bool { return gone[id] })
		texts = slices.DeleteFunc(texts, func(p roomText) bool { return gone[p.id] })
		return removed
	}
	all -= remove(invites, maxInviteBytes, (*Room).isInvite)
	all -= remove(all, space, (*Room).isEmpty)
	all -= shortenLargest(w, texts, all-space)
	remove(all, space, func(*Room) bool { return true })
	return texts, true
}

// newest returns the time of the newest operation.
func (r *Record) newest() (at int64) {
	for _, room := range r.rooms {
		at = max(at, room.touched)
	}
	return at
}

func (r *Room) isInvite() bool {
	return slices.ContainsFunc(r.unread, func(n Notification) bool { return n.Invite })
}

// shortenLargest halves what the largest room keeps, until enough bytes are saved or no
// room can be shortened.
func shortenLargest(w *writer, texts []roomText, enough int) (saved int) {
	var rooms bySize
	for i := range texts {
		rooms = append(rooms, &texts[i])
	}
	heap.Init(&rooms)
	for saved < enough && len(rooms) > 0 {
		p := rooms[0]
		if p.limit == 0 {
			heap.Pop(&rooms)
			continue
		}
		before, counted := len(p.text), p.room.kept()
		p.limit = min(p.limit, p.room.entries()) / 2
		p.room.settle(p.limit)
		p.room.isCut = p.room.isCut || p.room.kept() < counted
		w.encode(p)
		saved += before - len(p.text)
		heap.Fix(&rooms, 0)
	}
	return saved
}

// entries returns the largest number of entries of a kind in the room.
func (r *Room) entries() int { return max(r.kept(), len(r.threads), len(r.omitted), len(r.redacted)) }

// bySize is a heap with the largest room first.
type bySize []*roomText

func (s bySize) Len() int { return len(s) }

func (s bySize) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(len(s[j].text), len(s[i].text)), cmp.Compare(s[i].id, s[j].id)) < 0
}

func (s bySize) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

func (s *bySize) Push(x any) { *s = append(*s, x.(*roomText)) }

func (s *bySize) Pop() any {
	last := len(*s) - 1
	p := (*s)[last]
	*s = (*s)[:last]
	return p
}
