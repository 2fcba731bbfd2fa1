// Package turns schedules the requests of a host; its API may change at any time. It
// bounds the requests of each user and gateway, so that none delays others. It has no
// I/O and no clock, and is not safe for concurrent use.
//
// A gate is a gateway and an app, which fail together. A closed gate gets probes; other
// requests to it wait.
package turns

import (
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// The bounds of the requests in flight. Users have a bound, because they can invent any
// number of gateways and apps.
const (
	maxUser     = 4  // of a user, that began less than slowUser ago
	maxUserSlow = 16 // of a user in all
	slowUser    = 2 * time.Second

	newGate   = 8 // of a gate, before its first answer
	firstGate = 32
	minGate   = 2
	slowAfter = time.Second
)

// When gates close and open.
const (
	closeAfter    = 5 * time.Second // without a success
	closeUsers    = 3               // with failures
	throttleLasts = 10 * time.Second
	maxProbeDelay = 5 * time.Second
	rampFirst     = 64 // requests in the first second after an outage; it doubles
	rampSeconds   = 6
	blockedLasts  = time.Hour
)

// How long a request without a turn waits for the next attempt.
const (
	shortDelay  = 100 * time.Millisecond // for a turn, up to three times
	closedDelay = 4 * time.Second        // behind a closed gate, up to three times
	cutOffDelay = time.Second            // behind a closed gate, at a host that is cut off
	longDelay   = 10 * time.Minute
)

// Above these numbers of waiting requests, delays grow in proportion, which bounds the
// load on the queue.
const (
	manyOfUser    = 8 // within a second
	manyOfGate    = 1000
	manyClosed    = 10_000 // behind one closed gate
	manyAllClosed = 30_000 // behind all closed gates
)

// Config bounds a [Scheduler].
type Config struct {
	MaxInFlight int            // half of them to gates that are slow or new, but see maxSlow
	MaxPerGate  int            // to one gate
	Random      func() float64 // from 0 to 1
}

// Scheduler gives requests their turns.
type Scheduler struct {
	cfg      Config
	users    map[string]*user
	gates    map[string]*gate
	held     map[string]bool // gateways
	inFlight int
	slow     int // of inFlight, to gates that are slow or new
	swept    time.Time
	waiting  waiters // behind all closed gates

	tookAny   time.Time            // the last success of any gate
	unreached map[string]time.Time // gates, and when they were last unreachable
	seed      maphash.Seed
}

// Turn is a request in flight.
type Turn struct {
	User, Gate string
	began      time.Time
	isProbe    bool
	gate       *gate
}

type user struct {
	turns   []*Turn
	refused refusals
}

// refusals counts requests without a turn, in this window and the one before.
type refusals struct {
	began     time.Time
	n, before int
}

func (r *refusals) add(now time.Time, window time.Duration) int {
	if passed := now.Sub(r.began); passed > window {
		if r.before = r.n; passed > 2*window {
			r.before = 0
		}
		r.began, r.n = now, 0
	}
	r.n++
	return max(r.n, r.before)
}

// waiters counts requests by the second in which their delay ends.
type waiters struct {
	n    int
	ends map[int64]int
	from int64 // no delay ends earlier
}

func (w *waiters) count(now time.Time) int {
	for ; w.n > 0 && w.from < now.Unix(); w.from++ {
		w.n -= w.ends[w.from]
		delete(w.ends, w.from)
	}
	return w.n
}

func (w *waiters) add(now time.Time, delay time.Duration) {
	if w.n == 0 {
		w.ends, w.from = map[int64]int{}, now.Unix()
	}
	w.ends[now.Add(delay).Unix()]++
	w.n++
}

type gate struct {
	turns   []*Turn // oldest first
	limit   int
	isSlow  bool
	cutAt   time.Time // when the limit was lowered last
	usedAt  time.Time
	refused refusals // for a turn
	waiting waiters  // while it is closed

	took      time.Time            // the last success
	failedAt  time.Time            // the first failure since
	failing   []string             // users with failures since, up to closeUsers
	throttled map[string]time.Time // users, since then

	closedAt time.Time // zero if it is open
	probes   int
	probeAt  time.Time
	booked   bool // a waiting request will be the probe
	answers  answers
	opened   time.Time
	ramp     int // requests in the second that began at rampAt
	rampAt   time.Time
}

// New returns an empty scheduler.
func New(cfg Config) *Scheduler {
	return &Scheduler{
		cfg: cfg, users: map[string]*user{}, gates: map[string]*gate{}, held: map[string]bool{}, unreached: map[string]time.Time{},
		seed: maphash.MakeSeed(),
	}
}

func (s *Scheduler) gate(name string) *gate {
	g := s.gates[name]
	if g == nil {
		g = &gate{limit: min(newGate, s.cfg.MaxPerGate), isSlow: true}
		s.gates[name] = g
	}
	return g
}

func (s *Scheduler) user(name string) *user {
	u := s.users[name]
	if u == nil {
		u = &user{}
		s.users[name] = u
	}
	return u
}

// Hold replaces the set of held gateways.
func (s *Scheduler) Hold(gateways []string) {
	clear(s.held)
	for _, name := range gateways {
		s.held[name] = true
	}
}

func (s *Scheduler) isHeld(gate string) bool {
	gateway, _, _ := strings.Cut(gate, " ")
	return s.held[gateway]
}

// Admit gives a request its turn, which the caller must [Scheduler.End]. If turn is nil,
// the request waits for delay.
func (s *Scheduler) Admit(now time.Time, userName, gateName string) (turn *Turn, delay time.Duration) {
	s.sweep(now)
	g := s.gate(gateName)
	g.usedAt = now
	g.watch(s, now)
	isProbe, delay := s.passes(g, gateName, now)
	if delay == 0 {
		delay = s.fits(g, s.user(userName), now)
	}
	if delay > 0 {
		return nil, delay
	}
	t := &Turn{User: userName, Gate: gateName, began: now, isProbe: isProbe, gate: g}
	if isProbe {
		g.probeAt = now.Add(maxProbeDelay) // another one, if this one hangs
		g.booked = false
	}
	g.turns = append(g.turns, t)
	s.user(userName).turns = append(s.user(userName).turns, t)
	s.inFlight++
	if g.isSlow {
		s.slow++
	}
	return t, 0
}

// passes returns a delay if the gate is held, closed, or opened recently.
func (s *Scheduler) passes(g *gate, name string, now time.Time) (isProbe bool, delay time.Duration) {
	switch {
	case s.isHeld(name):
		return false, s.putOffClosed(g, now)
	case g.closedAt.IsZero():
		return false, s.rampDelay(g, now)
	case !now.Before(g.probeAt):
		return true, 0
	case !g.booked && g.probeAt.Sub(now) <= maxProbeDelay:
		g.booked = true
		return false, max(g.probeAt.Sub(now), time.Millisecond)
	case s.IsCutOff(now): // other hosts may reach the gate
		return false, cutOffDelay
	}
	return false, s.putOffClosed(g, now)
}

// fits returns a delay if a request exceeds a bound.
func (s *Scheduler) fits(g *gate, u *user, now time.Time) (delay time.Duration) {
	isFull := s.inFlight-s.slow >= s.cfg.MaxInFlight/2
	if g.isSlow {
		isFull = s.slow >= s.maxSlow(g)
	}
	recent := 0
	for _, t := range u.turns {
		if now.Sub(t.began) < slowUser {
			recent++
		}
	}
	switch {
	case recent >= maxUser || len(u.turns) >= maxUserSlow:
		return s.putOff(shortDelay, float64(u.refused.add(now, time.Second))/manyOfUser)
	case isFull || len(g.turns) >= g.limit:
		return s.putOff(shortDelay, float64(g.refused.add(now, time.Second))/manyOfGate)
	}
	return 0
}

// maxSlow bounds the requests in flight to slow gates. The first request to a new gate
// has reserved room: otherwise gates that hang would keep a host from new gates.
func (s *Scheduler) maxSlow(g *gate) int {
	isNew := len(g.turns) == 0 && g.took.IsZero() && g.failedAt.IsZero() && g.throttled == nil
	if isNew {
		return s.cfg.MaxInFlight
	}
	return s.cfg.MaxInFlight / 2
}

// putOff returns a delay from d to three times d, multiplied by a load above 1.
func (s *Scheduler) putOff(d time.Duration, load float64) time.Duration {
	random := 1 + 2*s.cfg.Random()
	return min(time.Duration(float64(d)*random*max(1, load)), longDelay)
}

func (s *Scheduler) putOffClosed(g *gate, now time.Time) time.Duration {
	load := max(float64(g.waiting.count(now))/manyClosed, float64(s.waiting.count(now))/manyAllClosed)
	delay := s.putOff(closedDelay, load)
	g.waiting.add(now, delay)
	s.waiting.add(now, delay)
	return delay
}

func (s *Scheduler) rampDelay(g *gate, now time.Time) time.Duration {
	seconds := int(now.Sub(g.opened) / time.Second)
	if g.opened.IsZero() || seconds >= rampSeconds {
		return 0
	}
	if now.Sub(g.rampAt) >= time.Second {
		g.rampAt, g.ramp = now, 0
	}
	if g.ramp++; g.ramp > rampFirst<<seconds {
		return s.putOff(5*shortDelay, float64(g.refused.add(now, time.Second))/manyOfGate)
	}
	return 0
}

// watch marks a gate with an old request as slow, and lowers its limit.
func (g *gate) watch(s *Scheduler, now time.Time) {
	if len(g.turns) > 0 && now.Sub(g.turns[0].began) > slowAfter {
		g.setSlow(s, true)
		g.lower(now)
	}
}

func (g *gate) lower(now time.Time) {
	if now.Sub(g.cutAt) >= time.Second {
		g.cutAt, g.limit = now, max(minGate, g.limit/2)
	}
}

func (g *gate) setSlow(s *Scheduler, slow bool) {
	if g.isSlow == slow {
		return
	}
	g.isSlow = slow
	if slow {
		s.slow += len(g.turns)
	} else {
		s.slow -= len(g.turns)
	}
}

// Result is the result of a request.
type Result int

// The results.
const (
	Taken     Result = iota // the gateway works
	Failed                  // the gateway may not work
	Unreached               // it failed before anything was sent
	Throttled               // the gateway asks for a wait
	Blocked                 // this host may not connect to it
	Neutral                 // unknown
	Unused                  // nothing was sent
)

// End ends a turn. Wait is for Throttled.
func (s *Scheduler) End(now time.Time, t *Turn, r Result, wait time.Duration) {
	g := t.gate
	s.remove(t)
	if t.isProbe {
		g.probeAt = now.Add(g.probeIn())
	}
	switch r {
	case Unused:
		if t.isProbe { // the next request becomes the probe
			g.probeAt = now
		}
	case Taken:
		s.took(g, now, now.Sub(t.began))
	case Failed, Unreached:
		if r == Unreached {
			s.unreached[t.Gate] = now
		}
		g.failed(now, t.User, t.isProbe)
	case Throttled:
		g.throttle(now, t.User, wait)
	case Blocked:
		g.close(now, blockedLasts)
	}
	if now.Sub(t.began) > slowAfter {
		g.lower(now)
	}
}

func (s *Scheduler) remove(t *Turn) {
	g := t.gate
	g.turns = without(g.turns, t)
	u := s.user(t.User)
	u.turns = without(u.turns, t)
	s.inFlight--
	if g.isSlow {
		s.slow--
	}
}

func without(turns []*Turn, t *Turn) []*Turn {
	return slices.DeleteFunc(turns, func(other *Turn) bool { return other == t })
}

// took opens the gate, and adapts its limit.
func (s *Scheduler) took(g *gate, now time.Time, took time.Duration) {
	if !g.closedAt.IsZero() {
		g.opened = now
	}
	g.took, s.tookAny = now, now
	g.failing, g.failedAt, g.throttled, g.closedAt, g.probes, g.booked = nil, time.Time{}, nil, time.Time{}, 0, false
	if took > slowAfter {
		g.setSlow(s, true)
		return
	}
	if len(g.turns) == 0 || now.Sub(g.turns[0].began) <= slowAfter {
		g.setSlow(s, false)
	}
	if g.limit < firstGate {
		g.limit *= 2
	} else {
		g.limit++
	}
	g.limit = min(g.limit, s.cfg.MaxPerGate)
}

// failed closes a gate that fails for several users. One user may invent many pushers
// that fail.
func (g *gate) failed(now time.Time, user string, isProbe bool) {
	if isProbe {
		g.probes++
		g.probeAt = now.Add(g.probeIn())
		return
	}
	if g.failedAt.IsZero() {
		g.failedAt = now
	}
	if len(g.failing) < closeUsers && !slices.Contains(g.failing, user) {
		g.failing = append(g.failing, user)
	}
	idleSince := g.failedAt
	if g.took.After(idleSince) {
		idleSince = g.took
	}
	if g.closedAt.IsZero() && len(g.failing) == closeUsers && now.Sub(idleSince) > closeAfter {
		g.close(now, time.Second)
	}
}

func (g *gate) probeIn() time.Duration { return min(time.Second<<min(g.probes, 8), maxProbeDelay) }

func (g *gate) close(now time.Time, probeIn time.Duration) {
	if g.closedAt.IsZero() {
		g.closedAt, g.probes = now, 0
	}
	g.probeAt, g.booked = now.Add(probeIn), false
}

// throttle closes a gate if several of its users must wait. The long wait is for their
// pushers: the gate is probed soon.
func (g *gate) throttle(now time.Time, user string, wait time.Duration) {
	if g.throttled == nil || len(g.throttled) > 1000 {
		g.throttled = map[string]time.Time{}
	}
	g.throttled[user] = now
	for other, at := range g.throttled {
		if now.Sub(at) > throttleLasts {
			delete(g.throttled, other)
		}
	}
	if len(g.throttled) >= closeUsers {
		g.close(now, min(wait, maxProbeDelay))
	}
}

// IsOpen reports whether a gate is open.
func (s *Scheduler) IsOpen(gate string) bool {
	g := s.gates[gate]
	return !s.isHeld(gate) && (g == nil || g.closedAt.IsZero())
}

// A host is cut off if it failed to reach this many gates lately, and reached none.
const (
	unreachedGates = 3
	unreachedLasts = 3 * closeAfter // how long a failure counts
)

// IsCutOff reports whether this host leaves the work to others, because it reaches no
// gateway.
func (s *Scheduler) IsCutOff(now time.Time) bool {
	if now.Sub(s.tookAny) <= closeAfter {
		return false
	}
	n := 0
	for gate := range s.unreached {
		if !s.isUnreached(now, gate) {
			continue
		}
		if n++; n == unreachedGates {
			return true
		}
	}
	return false
}

func (s *Scheduler) isUnreached(now time.Time, gate string) bool {
	at, found := s.unreached[gate]
	return found && at.After(s.tookAny) && now.Sub(at) < unreachedLasts
}

// MayReach reports whether this host should try a gate. A host that is cut off tries
// gates without recent failures: otherwise three gateways that refuse connections would
// delay all others.
func (s *Scheduler) MayReach(now time.Time, gate string) bool {
	return !s.IsCutOff(now) || !s.isUnreached(now, gate)
}

const maxClaims = 256 // at once

// Room returns how many backlogs to claim. A host that is cut off tries a few.
func (s *Scheduler) Room(now time.Time) int {
	if s.IsCutOff(now) {
		return closeUsers
	}
	return max(1, min(maxClaims, s.cfg.MaxInFlight/2-(s.inFlight-s.slow)))
}

const forgetAfter = 2 * time.Hour // of an unused gate

func (s *Scheduler) sweep(now time.Time) {
	if now.Sub(s.swept) < time.Minute {
		return
	}
	s.swept = now
	for name, g := range s.gates {
		if len(g.turns) == 0 && now.Sub(g.usedAt) > forgetAfter {
			delete(s.gates, name)
		}
	}
	for name, u := range s.users {
		if len(u.turns) == 0 && now.Sub(u.refused.began) > time.Minute {
			delete(s.users, name)
		}
	}
	for name, at := range s.unreached {
		if now.Sub(at) > time.Minute {
			delete(s.unreached, name)
		}
	}
}

// Stats is the current state of a scheduler.
type Stats struct {
	InFlight, Slow     int
	Open, Closed, Held int // gates
	Stopped            int // gates at the rejection limit
}

// Stats returns the current state.
func (s *Scheduler) Stats() (stats Stats) {
	stats.InFlight, stats.Slow = s.inFlight-s.slow, s.slow
	for name, g := range s.gates {
		if g.answers.isStopped {
			stats.Stopped++
		}
		switch {
		case s.isHeld(name):
			stats.Held++
		case g.closedAt.IsZero():
			stats.Open++
		default:
			stats.Closed++
		}
	}
	return stats
}
