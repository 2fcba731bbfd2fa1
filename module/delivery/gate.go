package delivery

import (
	"math"
	"slices"
	"time"
)

// GateState is how a host treats a push gateway.
type GateState int

// The states of a gate. See the package comment for what leads from one to the
// other.
const (
	GateOpen    GateState = iota // as many requests at a time as it bears
	GateWaiting                  // none, until the time that the gateway has named
	GateProbing                  // one from time to time
	GateRamping                  // more each second
	GateHeld                     // none, until an operator opens it
	gateStates
)

// String is the state's name.
func (s GateState) String() string {
	if s < 0 || s >= gateStates {
		return "unknown"
	}
	return [...]string{"open", "waiting", "probing", "ramping", "held"}[s]
}

const (
	minPerGateway   = 4  // requests at a time, however badly it goes
	firstPerGateway = 16 // at first

	closeAfter        = 10 // failures in a row
	closeAfterRamping = 3  // and while it ramps
	closePushers      = 3  // whose failures, or waits, are the gateway's

	throttleWindow = 10 * time.Second
	halveInterval  = time.Second

	firstProbe   = time.Second
	longestProbe = 5 * time.Second
	maxProbes    = 16 // under way

	rampRate = 20.0 // a second at first, doubling each second
	rampTime = 10 * time.Second
)

// gate decides when requests may go to a push gateway: what several pushers meet
// is the gateway's trouble, not each pusher's. It knows no clock. It is not safe
// for concurrent use.
type gate struct {
	most  int // requests at a time, at best
	state GateState
	since time.Time // the state
	until time.Time // waiting: its end; probing: when the next may go

	limit    float64 // requests at a time
	halvedAt time.Time
	posts    []*post // under way, the oldest first
	slow     int     // those of them that are of this class

	failures  int        // in a row
	failing   []pusherID // the first pushers that failed
	throttles []throttle
	status    int // of the last answer that was a failure; 0 for none
	probeWait time.Duration
	ramped    int // requests since the ramp began

	aliveAt time.Time // when a request was answered that did not fail
}

type throttle struct {
	id pusherID
	at time.Time
}

// post is a request that is under way.
type post struct {
	began time.Time
	class class
	fifo  *fifo  // whose it is
	cut   func() // ends it, if it was sent
}

func newGate(most int) *gate {
	return &gate{most: most, limit: float64(min(firstPerGateway, most))}
}

// mayPost reports whether a request may go now. Free is how many the host may
// have of the gateway's class beside those under way: no gateway takes more than
// half of them, so that there are some for the others. At is when to ask again; it
// is zero if the end of a request is to be waited for, of this gateway or, where it
// would bear more, of any.
func (g *gate) mayPost(now time.Time, free int) (ok bool, at time.Time) {
	if g.state == GateWaiting && !now.Before(g.until) {
		g.probe(now, now)
	}
	if g.state == GateRamping && now.Sub(g.since) >= rampTime {
		g.enter(GateOpen, now)
	}
	switch g.state {
	case GateHeld:
		return false, now.Add(time.Hour)
	case GateWaiting:
		return false, g.until
	case GateProbing:
		if now.Before(g.until) {
			return false, g.until
		}
		return len(g.posts) < maxProbes && free > 0, time.Time{}
	case GateRamping:
		if at := g.rampedAt(g.ramped + 1); now.Before(at) {
			return false, at
		}
	}
	return g.bears() && len(g.posts)-g.slow < free, time.Time{}
}

// bears reports whether the gateway would take another request if the host could
// have one.
func (g *gate) bears() bool { return len(g.posts) < int(g.limit) }

// rampedAt is when a number of requests may have gone since the ramp began: their
// rate doubles each second.
func (g *gate) rampedAt(requests int) time.Time {
	seconds := math.Log2(float64(requests-1)*math.Ln2/rampRate + 1)
	return g.since.Add(time.Duration(seconds * float64(time.Second)))
}

func (g *gate) begin(now time.Time, of class) *post {
	p := &post{began: now, class: of}
	g.posts = append(g.posts, p)
	if of == slow {
		g.slow++
	}
	switch g.state {
	case GateProbing:
		g.until = now.Add(g.probeWait)
		g.probeWait = min(2*g.probeWait, longestProbe)
	case GateRamping:
		g.ramped++
	}
	return p
}

// drop ends a request that was not sent.
func (g *gate) drop(p *post) {
	if p.class == slow {
		g.slow--
	}
	g.posts = slices.DeleteFunc(g.posts, func(other *post) bool { return other == p })
}

// underWayFor are the requests that have been under way for longer than a time.
func (g *gate) underWayFor(d time.Duration, now time.Time) []*post {
	n := 0
	for n < len(g.posts) && now.Sub(g.posts[n].began) > d {
		n++
	}
	return g.posts[:n]
}

// hanging are those that hang.
func (g *gate) hanging(now time.Time) []*post { return g.underWayFor(hangsAfter, now) }

// end takes in how a request ended. It reports whether the gate closes with it,
// or opens again.
func (g *gate) end(p *post, now time.Time, id pusherID, v verdict, status int, wait time.Duration) (closes, opens bool) {
	g.drop(p)
	if v == unsent || v == blocked {
		return false, false
	}
	if slowsDown(v, status) && now.Sub(g.halvedAt) >= halveInterval {
		g.halvedAt, g.limit = now, max(g.limit/2, minPerGateway)
	}
	if v.isAlive() {
		return false, g.endWell(now)
	}
	g.status = status
	switch {
	case v == throttled:
		return g.endThrottled(now, id, wait), false
	case p.began.Before(g.since): // it says nothing of how the gateway is now
		return false, false
	}
	return g.endBadly(now, id, v), false
}

func (g *gate) endWell(now time.Time) (opens bool) {
	g.failures, g.failing, g.aliveAt = 0, nil, now
	switch g.state {
	case GateProbing:
		g.ramp(now)
		return true
	case GateRamping:
		g.limit++
	case GateOpen:
		g.limit += 1 / g.limit
	}
	g.limit = min(g.limit, float64(g.most))
	return false
}

func (g *gate) endThrottled(now time.Time, id pusherID, wait time.Duration) (closes bool) {
	until := now.Add(wait)
	switch g.state {
	case GateHeld:
		return false
	case GateWaiting:
		g.until = later(g.until, until)
		return false
	case GateProbing:
		g.enter(GateWaiting, now)
		g.until = until
		return false
	}
	g.throttles = slices.DeleteFunc(g.throttles, func(t throttle) bool { return t.id == id || now.Sub(t.at) > throttleWindow })
	if g.throttles = append(g.throttles, throttle{id, now}); len(g.throttles) < closePushers {
		return false
	}
	g.enter(GateWaiting, now)
	g.until = until
	return true
}

func (g *gate) endBadly(now time.Time, id pusherID, v verdict) (closes bool) {
	g.failures++
	if len(g.failing) < closePushers && !slices.Contains(g.failing, id) {
		g.failing = append(g.failing, id)
	}
	most, first := closeAfter, firstProbe
	switch {
	case g.state == GateRamping && v == limited:
		most = 1
	case g.state == GateRamping:
		most = closeAfterRamping
	}
	isOpen := g.state == GateOpen || g.state == GateRamping
	if !isOpen || g.failures < most || g.state == GateOpen && len(g.failing) < closePushers {
		return false
	}
	if v == limited { // there is no hurry: it answers
		first = longestProbe
	}
	g.probe(now, now.Add(first))
	g.probeWait = first
	return true
}

// probe begins to try single requests.
func (g *gate) probe(now, first time.Time) {
	g.enter(GateProbing, now)
	g.probeWait, g.until = firstProbe, first
}

// ramp begins to send what waits.
func (g *gate) ramp(now time.Time) {
	g.enter(GateRamping, now)
	// Requests that hang since before take nobody's place.
	g.ramped, g.limit = 0, float64(minPerGateway+len(g.posts))
}

func (g *gate) enter(state GateState, now time.Time) {
	g.state, g.since = state, now
	g.failures, g.failing, g.throttles = 0, nil, nil
}

// isClosed reports whether requests have to wait for the gateway to recover, or for
// an operator.
func (g *gate) isClosed() bool { return g.state != GateOpen && g.state != GateRamping }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
