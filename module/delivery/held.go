package delivery

import (
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// notification is one that a pusher is to be sent.
type notification struct {
	event   *event
	outcome outcome
	added   time.Time // when it was handed over, by the clock of the queue
	slim    bool      // it was refused with all that it tells

	asked    bool // whether the user looks elsewhere was asked
	jittered bool // it has waited for Config.Jitter

	// entry and place are of the recipient in the log. Entry is nil once it is
	// the pusher's record that keeps the notification.
	entry *openEntry
	place int
}

// isExpired is by the clock of the queue.
func (n *notification) isExpired(now time.Time) bool { return now.Sub(n.added) > n.event.lifetime }

// record is what the queue keeps of a pusher in trouble, under its id.
type record struct {
	user     mxid.UserID
	setAt    int64 // the generation that is in trouble
	rejected bool  // and is to be removed
	attempts int
	due      time.Time // when to try again, by the clock of the queue
	since    time.Time // when the trouble began
	trouble  verdict
	dropped  int // notifications since
	kept     []*notification
}

func (h *record) encode() []byte {
	dst := appendText([]byte{wireVersion}, string(h.user))
	dst = appendFlag(appendNumber(dst, h.setAt), h.rejected)
	dst = appendNumber(dst, int64(h.attempts))
	dst = appendTime(appendTime(dst, h.due), h.since)
	dst = appendNumber(appendNumber(dst, int64(h.trouble)), int64(h.dropped))
	dst = appendNumber(dst, int64(len(h.kept)))
	for _, n := range h.kept {
		dst = appendFlag(appendTime(dst, n.added), n.slim)
		dst = n.event.appendTo(n.outcome.appendTo(dst))
	}
	for i, n := range h.kept { // where hosts that know of no traces do not read
		if n.event.traceparent != "" {
			dst = appendText(appendNumber(dst, int64(i)), n.event.traceparent)
		}
	}
	return dst
}

func readRecord(data []byte) (*record, error) {
	r := wireReader{rest: string(data)}
	if r.byte() != wireVersion {
		return nil, errGarbled
	}
	h := &record{user: mxid.UserID(r.own()), setAt: r.number(), rejected: r.flag(), attempts: int(r.number())}
	h.due, h.since = r.time(), r.time()
	h.trouble, h.dropped = verdict(r.number()), int(r.number())
	h.kept = make([]*notification, r.count())
	for i := range h.kept {
		n := &notification{added: r.time(), slim: r.flag(), outcome: r.outcome()}
		n.event = r.event()
		h.kept[i] = n
	}
	for r.rest != "" {
		i, traceparent := r.number(), r.own()
		if i < 0 || i >= int64(len(h.kept)) {
			return nil, errGarbled
		}
		h.kept[i].event.traceparent = traceparent
	}
	if r.garbled {
		return nil, errGarbled
	}
	return h, nil
}

// appendTime appends a time to the millisecond.
func appendTime(dst []byte, t time.Time) []byte { return appendNumber(dst, t.UnixMilli()) }

func (r *wireReader) time() time.Time { return time.UnixMilli(r.number()) }

// trim drops what is too much of the notifications of a pusher in trouble: the
// oldest of a room that has more than ofRoom, then the oldest of all that are
// more than most. One that is under way is left alone.
func trim(queue []*notification, underWay *notification, most, ofRoom int) (kept, dropped []*notification) {
	rooms := map[string]int{}
	keep := make([]bool, len(queue))
	for i := len(queue) - 1; i >= 0; i-- {
		room := queue[i].event.room
		switch {
		case queue[i] == underWay:
			keep[i] = true
		case most > 0 && rooms[room] < ofRoom:
			rooms[room]++
			most--
			keep[i] = true
		}
	}
	for i, n := range queue {
		if keep[i] {
			kept = append(kept, n)
		} else {
			dropped = append(dropped, n)
		}
	}
	return kept, dropped
}
