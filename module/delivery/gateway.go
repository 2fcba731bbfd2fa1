package delivery

import (
	"time"
)

const (
	// slowAfter is after what time pushers that wait for a gateway leave the log, so
	// that it does not fill with what cannot be sent soon: when the gateway's
	// answers take so long, or when the shard has more than is read ahead.
	slowAfter = 5 * time.Second

	pulseEvery = time.Second

	// A gateway that answered within slowAfter is remembered for a while after it
	// was used last, and so many of them are.
	responsiveFor  = time.Hour
	maxResponsives = 10_000
)

// gateway is a push gateway with the pushers that wait for it.
type gateway struct {
	*gate
	name     string
	queue    deque[*fifo]   // ready, in the order in which they became so
	failed   map[*fifo]bool // waiting after a failure that may be the gateway's
	active   bool           // among those that may take a request
	denied   bool           // among those that were denied one
	alarm    time.Time      // when it is asked again
	usedAt   time.Time
	rejected brake

	// responsive is for one that answers: a request has ended within slowAfter, and
	// since then there was no second in which half of those under way hung.
	responsive bool

	told  told
	known bool // not to be open, as of the last exchange
}

func (s *sender) gatewayOf(name string) *gateway {
	g := s.gateways[name]
	if g == nil {
		g = &gateway{gate: newGate(s.cfg.MaxPerGateway), name: name, failed: map[*fifo]bool{}}
		s.gateways[name] = g
		if t, found := s.shared.known[name]; found {
			s.heed(g, t, time.Now())
		}
	}
	g.usedAt = time.Now()
	return g
}

// activate has a gateway asked whether it takes a request.
func (s *sender) activate(g *gateway) {
	if !g.active && g.queue.count > 0 {
		g.active = true
		s.active = append(s.active, g)
	}
}

// free is how many more requests may be under way.
func (s *sender) free() int {
	return min(s.cfg.MaxInFlight, s.cfg.MaxInFlight+savedAhead-s.saves.unsaved) - s.inFlight
}

// freeFor is how many more requests may be under way, as far as it is for a
// gateway to take them: those that are not responsive have half of all requests
// together, however many they are.
func (s *sender) freeFor(g *gateway) int {
	if g.responsive {
		return s.free()
	}
	return min(s.free(), s.cfg.MaxInFlight/2-s.unresponsive)
}

// dispatch begins as many requests as may be under way, from the gateways in
// turn.
func (s *sender) dispatch() {
	now := time.Now()
	for len(s.active) > 0 {
		if s.free() <= 0 {
			return
		}
		g := s.active[0]
		s.active[0] = nil
		s.active = s.active[1:]
		g.active = false
		if g.queue.count == 0 {
			continue
		}
		ok, at := g.mayPost(now, s.freeFor(g))
		switch {
		case ok:
			s.begin(g, now)
			s.activate(g)
		case at.IsZero() && g.bears():
			s.deny(g)
		case !at.IsZero() && !g.alarm.After(now), !at.IsZero() && at.Before(g.alarm):
			g.alarm = at
			s.at(at, func() { s.activate(g) })
		}
	}
}

// begin takes the next pusher of a gateway that can be sent to: the one that
// waits longest or, to try the gateway, the one that came last.
func (s *sender) begin(g *gateway, now time.Time) {
	var f *fifo
	if g.state == GateProbing {
		f = g.queue.popBack()
	} else {
		f = g.queue.popFront()
	}
	sh := f.user.shard
	switch {
	case sh.lost || sh.leaving || f.state != fifoReady || f.gateway != g:
		return
	case !sh.canSend():
		f.park()
		return
	}
	f.dropExpired()
	if !f.heldAt.IsZero() {
		f.trim(now)
	}
	if len(f.queue) == 0 {
		f.next()
		return
	}
	if left := f.jitterLeft(); left > 0 {
		f.hold(left)
		return
	}
	f.state, f.post, f.sending = fifoSending, g.begin(now), f.blame.choose(f.queue)
	f.post.fifo = f
	s.inFlight++
	sh.inFlight++
	if !g.responsive {
		s.unresponsive++
	}
	if s.unread != nil || f.asksAttention() || f.sending.event.countsOnly || !f.user.isFresh(now) {
		s.toPrepare.add(f)
		return
	}
	f.send(nil)
}

// park has a pusher wait until its shard's lease is renewed.
func (f *fifo) park() {
	f.state = fifoParked
	f.user.shard.parked = append(f.user.shard.parked, f)
}

// abandon ends a request before it was sent.
func (f *fifo) abandon() {
	f.gateway.drop(f.post)
	f.endRequest()
}

// endRequest gives back what a request has taken.
func (f *fifo) endRequest() {
	s := f.sender()
	f.sending = nil
	s.inFlight--
	f.user.shard.inFlight--
	if !f.gateway.responsive {
		s.unresponsive--
	}
	f.user.shard.touch()
	s.activate(f.gateway)
	s.askDenied()
}

func (s *sender) deny(g *gateway) {
	if !g.denied {
		g.denied = true
		s.denied = append(s.denied, g)
	}
}

// askDenied asks some of the gateways again that would have taken more than their
// share. There is room for one request more.
func (s *sender) askDenied() {
	const some = 2
	for range min(some, len(s.denied)) {
		g := s.denied[0]
		s.denied[0] = nil
		s.denied = s.denied[1:]
		g.denied = false
		s.activate(g)
	}
}

// closed is for a gateway that has closed: who waits for it leaves the log, and
// the failures that were the gateway's are not counted.
func (s *sender) closed(g *gateway) {
	for i := range g.queue.count {
		if f := *g.queue.at(i); !f.user.shard.lost && f.state == fifoReady && f.gateway == g {
			f.keep()
		}
	}
	s.requeueFailed(g)
}

// opened is for a gateway that answers again: who waits on their own for it goes
// on, and what still hangs since it did not answer is cut off and sent again.
func (s *sender) opened(g *gateway, now time.Time) {
	cut(g.hanging(now))
	s.requeueFailed(g)
}

// requeueFailed has the pushers of a gateway that wait on their own wait for it.
func (s *sender) requeueFailed(g *gateway) {
	failed := g.failed
	g.failed = map[*fifo]bool{}
	s.failing -= len(failed)
	for f := range failed {
		if f.state == fifoWaiting && !f.user.shard.lost && !f.rejected {
			f.alarms++
			f.attempts = 0
			f.next()
		}
	}
}

// setFailed says whether a pusher waits after a failure that may be its gateway's.
func (f *fifo) setFailed(failed bool) {
	g, s := f.gateway, f.sender()
	switch {
	case g == nil || g.failed[f] == failed:
	case failed:
		g.failed[f] = true
		s.failing++
	default:
		delete(g.failed, f)
		s.failing--
	}
}

// pulse does what is to be done from time to time.
func (s *sender) pulse() {
	now := time.Now()
	for name, g := range s.gateways {
		if hanging := len(g.hanging(now)); hanging > 0 && 2*hanging >= g.inFlight {
			s.setResponsive(g, false)
		}
		s.keepSlow(g, now)
		g.rejected.rotate(now)
		s.tell(g, now)
		if g.isIdle(now) && (g.isClosed() || !g.responsive || now.Sub(g.usedAt) > responsiveFor || len(s.gateways) > maxResponsives) {
			delete(s.gateways, name)
		}
	}
	s.cutSurplus(now)
	s.exchange()
	s.takeStats()
	s.after(pulseEvery, s.pulse)
}

// setResponsive says whether a gateway answers in time.
func (s *sender) setResponsive(g *gateway, responsive bool) {
	switch {
	case g.responsive == responsive:
		return
	case responsive:
		s.unresponsive -= g.inFlight
	default:
		s.unresponsive += g.inFlight
	}
	g.responsive = responsive
}

// cutSurplus cuts requests off that hang where gateways that were responsive have
// more of them than all that are not may have together. They are sent again.
func (s *sender) cutSurplus(now time.Time) {
	surplus := s.unresponsive - s.cfg.MaxInFlight/2
	for _, g := range s.gateways {
		if surplus <= 0 {
			return
		}
		if !g.responsive {
			hanging := g.hanging(now)
			hanging = hanging[:min(surplus, len(hanging))]
			cut(hanging)
			surplus -= len(hanging)
		}
	}
}

func cut(posts []*post) {
	for _, p := range posts {
		if p.cut != nil {
			p.cut()
		}
	}
}

// keepSlow has pushers leave the log that a slow gateway is sent to, or that wait
// for it.
func (s *sender) keepSlow(g *gateway, now time.Time) {
	for _, p := range g.hanging(now) {
		if f := p.fifo; !f.user.shard.lost && f.isInLog() {
			f.keep()
		}
	}
	slow := g.isSlow(now)
	for i := range g.queue.count {
		f := *g.queue.at(i)
		if sh := f.user.shard; sh.lost || f.state != fifoReady || f.gateway != g || !f.isInLog() {
			continue
		} else if slow || (sh.open >= readAhead || !g.responsive) && now.Sub(f.readyAt) > slowAfter {
			f.keep()
		}
	}
}

// isSlow reports whether who waits for the gateway waits for long.
func (g *gateway) isSlow(now time.Time) bool {
	return g.inFlight >= minPerGateway && g.slowest(now) > slowAfter
}

// isInLog reports whether the log keeps a notification of the pusher, and will
// after the next checkpoint.
func (f *fifo) isInLog() bool {
	return !f.adopt && len(f.queue) > 0 && f.queue[len(f.queue)-1].entry != nil
}

// isIdle reports whether nothing need be remembered of a gateway.
func (g *gateway) isIdle(now time.Time) bool {
	waits := g.state == GateWaiting && now.Before(g.until)
	return !waits && g.queue.count == 0 && g.inFlight == 0 && len(g.failed) == 0 && g.rejected.isEmpty() &&
		!g.active && now.Sub(g.usedAt) > throttleWindow
}

func (s *sender) takeStats() {
	stats := &Stats{
		InFlight: s.inFlight, ShardsOwned: len(s.shards), HeldPushers: s.held, HeldBytes: s.heldBytes, Takeovers: s.takeovers,
	}
	queueNow := s.clock()
	for _, sh := range s.shards {
		stats.OpenEntries += len(sh.entries)
		if len(sh.entries) > 0 {
			stats.Oldest = max(stats.Oldest, queueNow.Sub(sh.entries[0].added))
		}
	}
	for _, g := range s.gateways {
		stats.Gateways[g.state]++
		if g.rejected.isOn(s.hosts) {
			stats.Braked++
		}
	}
	s.stats.Store(stats)
}
