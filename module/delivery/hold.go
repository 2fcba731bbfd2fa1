package delivery

import (
	"math/rand/v2"
	"slices"
	"time"
)

// longestHold is for how long a notification is held back at most since the user
// looks elsewhere, from when it was handed over.
const longestHold = 5 * time.Minute

// mayHold reports whether a notification of the pusher may be held back at all:
// counts alone alert nobody, and a call rings at once, with all that is before it.
func (f *fifo) mayHold(n *notification) bool {
	isCall := func(n *notification) bool { return n.event.isCall() }
	return !n.event.countsOnly && !slices.ContainsFunc(f.queue, isCall)
}

// jitterLeft is how long the first notification has to wait before it is sent, so
// that its gateway cannot tell when it came. It is asked once for each.
func (f *fifo) jitterLeft() time.Duration {
	s, n := f.sender(), f.queue[0]
	if s.cfg.Jitter == 0 || n.jittered || !f.mayHold(n) {
		return 0
	}
	n.jittered = true
	return rand.N(s.cfg.Jitter) - s.clock().Sub(n.added)
}

// asksAttention reports whether the host is to be asked where the user looks,
// before a notification is sent.
func (f *fifo) asksAttention() bool {
	return f.sender().attention != nil && !f.sending.asked && f.mayHold(f.sending)
}

// holdLeft is for how long what would be sent is to be held back, as the host has
// said. It is asked once for each.
func (f *fifo) holdLeft(p prepared) time.Duration {
	n := f.sending
	n.asked = true
	if !f.mayHold(n) { // a call came while the host was asked
		return 0
	}
	return min(p.holds[f], longestHold-f.sender().clock().Sub(n.added))
}

// hold sends the first notification when a time is over. What arrives meanwhile
// waits behind it, and all goes at once when somebody calls.
func (f *fifo) hold(d time.Duration) {
	f.state, f.holding = fifoWaiting, true
	f.after(d)
}

// stopHolding has the first notification sent.
func (f *fifo) stopHolding() {
	f.alarms++
	f.state, f.holding = fifoIdle, false
}
