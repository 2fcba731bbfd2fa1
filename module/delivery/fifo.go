package delivery

import (
	"slices"
	"time"
)

// fifoState is what a pusher's notifications wait for.
type fifoState int

const (
	fifoIdle    fifoState = iota // there are none
	fifoLoading                  // the pusher to be read
	fifoReady                    // their gateway
	fifoSending                  // the answer to the first of them
	fifoWaiting                  // a time
	fifoParked                   // the lease of the shard to be renewed
)

const (
	// shortTrouble is for how long a pusher in trouble keeps up to keepAtFirst
	// notifications, whatever the configuration says: so a gateway that starts again
	// loses nothing. It does where pushers in trouble have half of MaxHeldBytes.
	shortTrouble = 30 * time.Second
	keepAtFirst  = 100
)

// fifo is what is to be sent to one pusher, in order, one at a time.
type fifo struct {
	user  *user
	id    pusherID
	state fifoState
	queue []*notification

	gateway *gateway
	readyAt time.Time // when it became ready
	device  *device   // which is sent to
	post    *post
	sending *notification // nil if none is under way

	holding bool // it waits, but is not in trouble; see hold.go

	// What follows is for a pusher in trouble.
	setAt    int64 // the generation that is
	attempts int   // that failed since one was delivered
	blame    blame // of the first notification
	trouble  verdict
	since    time.Time // zero without trouble
	heldAt   time.Time // since when more than usual is kept, zero if it is not
	due      time.Time
	alarms   int // those before the last do not count
	rejected bool
	dropped  int

	confirmed bool // an operator wants it removed, though its gateway rejects too many

	adopt   bool // the record is to keep what the log keeps until now
	stored  bool // the queue may have a record
	writing bool // a checkpoint is under way that changes it
	bytes   int  // of the record
}

func (f *fifo) sender() *sender { return f.user.shard.s }

// isHeld reports whether what arrives has to wait for long: the pusher or its
// gateway is in trouble, or the user looks elsewhere.
func (f *fifo) isHeld() bool {
	return !f.since.IsZero() || f.rejected || f.holding && !f.isInLog() || f.gateway != nil && f.state == fifoReady && f.gateway.isClosed()
}

// push adds a notification. D is the pusher as it was read last.
func (f *fifo) push(n *notification, d *device) {
	f.renew(d)
	if f.rejected {
		f.drop(n, DropGone)
		return
	}
	if f.user.shard.isFlushed(n, f.user.id, d) {
		f.drop(n, DropFlushed)
		f.settle()
		return
	}
	held := f.isHeld()
	if f.holding && n.event.isCall() {
		f.stopHolding()
	}
	if n.event.countsOnly {
		f.dropCounts()
		if held { // the counts come with what it is sent then
			f.drop(n, DropCoalesced)
			return
		}
	}
	if f.queue = append(f.queue, n); held {
		f.keep()
	}
	if f.state == fifoIdle {
		f.enqueue(d)
	}
}

// dropCounts drops counts alone that were not sent yet.
func (f *fifo) dropCounts() {
	f.queue = slices.DeleteFunc(f.queue, func(n *notification) bool {
		waits := n.event.countsOnly && n != f.sending
		if waits {
			f.drop(n, DropCoalesced)
		}
		return waits
	})
}

// drop finishes a notification that is not sent. It is not in the queue any more.
func (f *fifo) drop(n *notification, reason DropReason) {
	if n.entry == nil && !n.event.countsOnly {
		f.touchRecord()
	}
	f.user.shard.finish(n, f.id)
	f.sender().drop(reason, 1)
	if reason == DropCoalesced || reason == DropEvicted {
		f.dropped++
	}
}

// keep has the next checkpoint move the notifications from the log to the
// pusher's record, those of them that are worth it.
func (f *fifo) keep() {
	f.trim(time.Now())
	f.adopt = true
	f.touchRecord()
}

// trim drops what is too much to be kept of a pusher in trouble, which is nearly
// nothing as long as that may soon be over.
func (f *fifo) trim(now time.Time) {
	s := f.sender()
	if f.heldAt.IsZero() {
		f.heldAt = now
	}
	most, ofRoom, reason := s.cfg.KeepHeld, s.cfg.KeepOfRoom, DropCoalesced
	if now.Sub(f.heldAt) < shortTrouble && s.heldBytes < s.cfg.MaxHeldBytes/2 {
		most, ofRoom = max(most, keepAtFirst), max(ofRoom, keepAtFirst)
	}
	if s.heldBytes > s.cfg.MaxHeldBytes {
		most, reason = 1, DropEvicted
	}
	if s.heldBytes > s.cfg.MaxHeldBytes/4*5 {
		most = 0
	}
	f.dropCounts()
	kept, dropped := trim(f.queue, f.sending, most, ofRoom)
	f.queue = kept
	for _, n := range dropped {
		f.drop(n, reason)
	}
}

// touchRecord has the next checkpoint write the pusher's record.
func (f *fifo) touchRecord() {
	f.user.shard.dirty[f] = true
	f.user.shard.change()
}

// enqueue has the first notification sent when the gateway takes it.
func (f *fifo) enqueue(d *device) {
	s := f.sender()
	f.state, f.readyAt = fifoReady, time.Now()
	f.gateway = s.gatewayOf(d.gateway)
	f.gateway.queue.pushBack(f)
	if f.gateway.isClosed() || f.gateway.class == slow {
		f.keep()
	}
	s.activate(f.gateway)
}

// next goes on with what is first now.
func (f *fifo) next() {
	f.dropExpired()
	f.device, f.post, f.holding = nil, nil, false
	switch {
	case len(f.queue) == 0 && !f.rejected:
		f.end()
	case f.user.read.IsZero():
		f.state = fifoLoading
		f.user.refresh()
	default:
		f.resume()
	}
}

// resume is next when the pusher was read.
func (f *fifo) resume() {
	d := f.user.device(f.id)
	if d == nil {
		f.gone()
		return
	}
	f.renew(d)
	switch {
	case f.rejected:
		f.isRejectedStill(d)
	case len(f.queue) == 0:
		f.state = fifoIdle
		f.settle()
	default:
		f.enqueue(d)
	}
}

// renew ends the trouble of a pusher that was set anew.
func (f *fifo) renew(d *device) {
	if f.setAt == d.setAt {
		return
	}
	f.setAt = d.setAt
	if f.since.IsZero() && !f.rejected {
		return
	}
	f.recover()
	if f.state == fifoWaiting {
		f.alarms++
		f.state = fifoIdle
		f.after(0)
	}
}

// recover ends the pusher's trouble.
func (f *fifo) recover() {
	f.setFailed(false)
	if !f.since.IsZero() || f.rejected {
		f.touchRecord()
	}
	f.attempts, f.dropped, f.since, f.heldAt, f.trouble = 0, 0, time.Time{}, time.Time{}, delivered
	f.rejected, f.confirmed = false, false
}

// end is for a pusher for which nothing waits. Its trouble is over, too, or its
// record would stay for as long as nothing arrives, which may be for ever.
func (f *fifo) end() {
	f.alarms++
	f.recover()
	f.state, f.holding = fifoIdle, false
	f.settle()
}

// gone drops everything, since the pusher is not to be sent to any more.
func (f *fifo) gone() {
	queue := f.queue
	f.queue = nil
	for _, n := range queue {
		f.drop(n, DropGone)
	}
	f.end()
}

// dropExpired drops the notifications at the front that are of no use any more.
func (f *fifo) dropExpired() {
	for now := f.sender().clock(); len(f.queue) > 0 && f.queue[0].isExpired(now); {
		f.discard(f.queue[0], DropExpired)
	}
}

// discard drops a notification of the queue.
func (f *fifo) discard(n *notification, reason DropReason) {
	f.take(n)
	f.drop(n, reason)
}

// take removes a notification from the queue.
func (f *fifo) take(n *notification) {
	f.queue = slices.DeleteFunc(f.queue, func(other *notification) bool { return other == n })
}

// wait tries again when a time is over.
func (f *fifo) wait(why verdict, d time.Duration) {
	now := time.Now()
	if f.since.IsZero() {
		f.since = now
	}
	f.trouble, f.due = why, now.Add(d)
	f.state = fifoWaiting
	f.keep()
	f.after(d)
}

// after calls next when a time is over, unless it is called again before.
func (f *fifo) after(d time.Duration) {
	f.alarms++
	alarm := f.alarms
	f.sender().after(d, func() {
		if alarm == f.alarms && !f.user.shard.lost && (f.state == fifoWaiting || f.state == fifoIdle) {
			f.next()
		}
	})
}

// settle forgets a pusher for which there is nothing to do.
func (f *fifo) settle() {
	at := slices.Index(f.user.fifos, f) // -1 if it was forgotten before
	isIdle := f.state == fifoIdle && len(f.queue) == 0 && f.since.IsZero()
	if at >= 0 && isIdle && !f.stored && !f.writing && !f.user.shard.dirty[f] {
		f.user.fifos = slices.Delete(f.user.fifos, at, at+1)
		f.user.settle()
	}
}

// write puts the pusher's record among those of a checkpoint, nil if it needs
// none any more.
func (f *fifo) write(records map[string][]byte) {
	f.writing = true
	if f.adopt {
		f.adopt = false
		for _, n := range f.queue {
			f.user.shard.finish(n, f.id)
		}
	}
	h := f.record()
	if len(h.kept) == 0 && f.since.IsZero() && !f.rejected {
		if f.stored {
			records[string(f.id)] = nil
		}
		f.stored = false
		f.setBytes(0)
		return
	}
	data := h.encode()
	records[string(f.id)] = data
	f.stored = true
	f.setBytes(len(data))
}

// record returns what the queue is to keep.
func (f *fifo) record() *record {
	ahead := f.sender().ahead()
	h := &record{
		user: f.user.id, setAt: f.setAt, rejected: f.rejected, attempts: f.attempts,
		due: f.due.Add(ahead), since: f.since.Add(ahead), trouble: f.trouble, dropped: f.dropped,
	}
	for _, n := range f.queue {
		if n.entry == nil && !n.event.countsOnly {
			h.kept = append(h.kept, n)
		}
	}
	return h
}

// setBytes counts what is held.
func (f *fifo) setBytes(n int) {
	s := f.sender()
	if f.bytes > 0 {
		s.held--
	}
	if n > 0 {
		s.held++
	}
	s.heldBytes += n - f.bytes
	f.bytes = n
}

// restoreFIFO takes over what a former owner has kept of a pusher.
func (u *user) restoreFIFO(id pusherID, h *record, bytes int) {
	f := u.fifo(id)
	ahead := u.shard.s.ahead()
	f.queue, f.setAt, f.rejected = h.kept, h.setAt, h.rejected
	f.attempts, f.trouble, f.dropped, f.stored = h.attempts, h.trouble, h.dropped, true
	f.setBytes(bytes)
	f.state = fifoWaiting
	if h.trouble == delivered && !h.rejected { // it only waits for its turn
		f.after(0)
		return
	}
	f.due, f.since = h.due.Add(-ahead), h.since.Add(-ahead)
	f.after(time.Until(f.due))
}
