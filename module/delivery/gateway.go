package delivery

import (
	"slices"
	"time"
)

const (
	// hangsAfter is after what time a request hangs. Pushers that have waited for so
	// long leave the log, so that it does not fill with what cannot be sent soon.
	hangsAfter = 5 * time.Second

	pulseEvery = time.Second

	// Responsive gateways are remembered for a while after they were used last, and
	// so many of them are.
	responsiveFor  = 24 * time.Hour
	maxResponsives = 10_000
)

// class is how soon a gateway answers, as far as this host knows, and which of
// the host's requests count together. So gateways that do not answer keep no
// place from those that do, however many they are and whoever has set them:
//
//   - To responsive gateways there are as many as Config.MaxInFlight, with those to
//     untried ones.
//   - To untried gateways there are a quarter of it, and the gateway that came last
//     is the next.
//   - A request that has been under way for slowAfter is slow, and so is each to a
//     slow gateway. There are slowFactor times as many, and a quarter of that to
//     slow gateways. Where more are slow, those that have hung longest are cut off
//     and sent again.
type class int

const (
	untried    class = iota // no request has ended within hangsAfter, and none hangs
	responsive              // one has, and since then there was no second in which half of those under way hung
	slow                    // there was
	classes
)

const (
	slowAfter  = time.Second
	slowFactor = 8
)

// gateway is a push gateway with the pushers that wait for it.
type gateway struct {
	*gate
	name     string
	queue    deque[*fifo]   // ready, in the order in which they became so
	failed   map[*fifo]bool // waiting after a failure that may be the gateway's
	class    class
	active   bool          // among those that may take a request
	denied   [classes]bool // among those of the class that were denied one
	alarm    time.Time     // when it is asked again
	usedAt   time.Time
	rejected brake
	suspects suspects

	announced   announced
	knownClosed bool // by the other hosts, as of the last exchange
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

// inFlight is how many requests are under way that are not slow.
func (s *sender) inFlight() int { return s.requests[untried] + s.requests[responsive] }

// free is how many more of them there may be.
func (s *sender) free() int {
	return min(s.cfg.MaxInFlight, s.cfg.MaxInFlight+savedAhead-s.saves.unsaved) - s.inFlight()
}

// freeFor is how many more requests there may be to gateways of a class.
func (s *sender) freeFor(of class) int {
	switch of {
	case untried:
		return min(s.free(), s.cfg.MaxInFlight/4-s.requests[untried])
	case slow:
		return min(s.free(), s.maxSlow()/4-s.requests[slow])
	}
	return s.free()
}

// maxSlow is how many requests may be slow.
func (s *sender) maxSlow() int { return slowFactor * s.cfg.MaxInFlight }

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
		ok, at := g.mayPost(now, s.freeFor(g.class))
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
// waits longest or, to try the gateway, one that came last.
func (s *sender) begin(g *gateway, now time.Time) {
	var f *fifo
	if g.state == GateProbing {
		f = g.popProbe()
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
	f.state, f.post, f.sending = fifoSending, g.begin(now, g.class), f.blame.choose(f.queue)
	f.post.fifo = f
	s.requests[g.class]++
	sh.inFlight++
	if s.unread != nil || f.asksAttention() || f.sending.event.countsOnly || !f.user.isFresh(now) {
		s.toPrepare.add(f)
		return
	}
	f.send(nil)
}

// popProbe takes the pusher with which the gateway is tried: the last one to be sent
// an event that has not just failed, if there is any.
func (g *gateway) popProbe() *fifo {
	for i := g.queue.count - 1; i >= 0; i-- {
		if f := *g.queue.at(i); len(f.queue) > 0 && (f.blame.ahead || g.suspects[f.queue[0].event.id] == nil) {
			return g.queue.pop(i)
		}
	}
	return g.queue.popBack()
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

// ended is [gate.end], but for an event that is poison: its failures are not the
// gateway's.
func (g *gateway) ended(p *post, now time.Time, id pusherID, ev *event, v verdict, status int, wait time.Duration) (closes, opens bool) {
	mayBeOfEvent := v == failed && status > 0 && !ev.countsOnly
	switch {
	case mayBeOfEvent && g.suspects.isPoison(ev):
		g.drop(p)
		return false, false
	case mayBeOfEvent:
		g.suspects.failed(ev, p.began, now)
	case v.isAlive():
		g.suspects.taken(ev)
	}
	return g.end(p, now, id, v, status, wait)
}

// endRequest gives back what a request has taken.
func (f *fifo) endRequest() {
	s := f.sender()
	f.sending = nil
	s.requests[f.post.class]--
	f.user.shard.inFlight--
	f.user.shard.touch()
	s.activate(f.gateway)
	s.askDenied()
}

func (s *sender) deny(g *gateway) {
	if !g.denied[g.class] {
		g.denied[g.class] = true
		s.denied[g.class].pushBack(g)
	}
}

// askDenied asks some of the gateways again that would have taken more than their
// share. There is room for one request more.
func (s *sender) askDenied() {
	const some = 2
	for of := range s.denied {
		list := &s.denied[of]
		for range min(some, list.count) {
			next := list.popFront
			if class(of) == untried { // the last: however many hang, the next one that does not is soon tried
				next = list.popBack
			}
			g := next()
			g.denied[of] = false
			s.activate(g)
		}
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
	now, responsives := time.Now(), 0
	for name, g := range s.gateways {
		s.countSlow(g, now)
		s.keepWaiting(g, now)
		g.rejected.rotate(now)
		s.announceState(g, now)
		if g.class == responsive {
			responsives++
		}
		if g.isIdle(now) && (g.isClosed() || g.class != responsive || now.Sub(g.usedAt) > responsiveFor || responsives > maxResponsives) {
			delete(s.gateways, name)
		}
	}
	s.cutSurplus(now)
	s.exchange()
	s.takeStats()
	s.after(pulseEvery, s.pulse)
}

// countSlow counts requests to a gateway as slow, which may make it slow.
func (s *sender) countSlow(g *gateway, now time.Time) {
	for _, p := range g.underWayFor(slowAfter, now) {
		if p.class != slow {
			s.requests[p.class]--
			s.requests[slow]++
			p.class = slow
			g.slow++
			s.askDenied()
		}
	}
	if hanging := len(g.hanging(now)); hanging > 0 && 2*hanging >= len(g.posts) {
		g.class = slow
	}
}

// cutSurplus cuts the requests off that have hung longest, where more are slow than
// there may be. They are sent again.
func (s *sender) cutSurplus(now time.Time) {
	surplus := s.requests[slow] - s.maxSlow()
	if surplus <= 0 {
		return
	}
	var hanging []*post
	for _, g := range s.gateways {
		hanging = append(hanging, g.hanging(now)...)
	}
	slices.SortFunc(hanging, func(a, b *post) int { return a.began.Compare(b.began) })
	cut(hanging[:min(surplus, len(hanging))])
}

func cut(posts []*post) {
	for _, p := range posts {
		if p.cut != nil {
			p.cut()
		}
	}
}

// keepWaiting has pushers leave the log that wait for a gateway, or its answer, for
// long.
func (s *sender) keepWaiting(g *gateway, now time.Time) {
	for _, p := range g.hanging(now) {
		if f := p.fifo; !f.user.shard.lost && f.isInLog() {
			f.keep()
		}
	}
	for i := range g.queue.count {
		f := *g.queue.at(i)
		if sh := f.user.shard; sh.lost || f.state != fifoReady || f.gateway != g || !f.isInLog() {
			continue
		} else if g.class == slow || (sh.open >= readAhead || g.class == untried) && now.Sub(f.readyAt) > hangsAfter {
			f.keep()
		}
	}
}

// isInLog reports whether the log keeps a notification of the pusher, and will
// after the next checkpoint.
func (f *fifo) isInLog() bool {
	return !f.adopt && len(f.queue) > 0 && f.queue[len(f.queue)-1].entry != nil
}

// isIdle reports whether nothing need be remembered of a gateway.
func (g *gateway) isIdle(now time.Time) bool {
	waits := g.state == GateWaiting && now.Before(g.until)
	return !waits && g.queue.count == 0 && len(g.posts) == 0 && len(g.failed) == 0 && g.rejected.isEmpty() &&
		!g.active && now.Sub(g.usedAt) > throttleWindow
}

func (s *sender) takeStats() {
	stats := &Stats{
		InFlight: s.inFlight(), Slow: s.requests[slow], ShardsOwned: len(s.shards), HeldPushers: s.held, HeldBytes: s.heldBytes, Takeovers: s.takeovers,
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
