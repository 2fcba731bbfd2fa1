// Package turns schedules the requests of a host; its API may change at any time. It
// bounds the requests of each user and gateway, so that none delays others. It has no
// I/O and no clock, and is not safe for concurrent use.
//
// A gate is a gateway and an app, which fail together. Limits count users, because a
// user can invent any number of pushers, gateways and apps.
package turns

import (
	"container/list"
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// The bounds of a user.
const (
	maxUser        = 4  // requests in flight that do not hang; also requests in the lines of gates
	maxUserAll     = 16 // requests in flight
	maxUserWaiting = 16 // requests that wait for a place

	// hangAfter is the time after which a request without an answer hangs. It no longer
	// counts for its gate then, but still for its user.
	hangAfter = 2 * time.Second
)

// maxWaiting bounds the requests of a host that wait for a place.
const maxWaiting = 4096

// How long a request that may not wait here is put off.
const (
	shortDelay = 100 * time.Millisecond // without a place; at random up to three times as long
	longDelay  = 10 * time.Minute
)

// If more requests than these are put off within a second, their delays grow in proportion,
// which bounds the load on the queue.
const (
	manyOfUser = 8
	manyOfAll  = 1000
)

// Config bounds a [Scheduler].
type Config struct {
	MaxInFlight int            // half for requests that hang or may hang; see [Scheduler.hasPlace]
	MaxPerGate  int            // to one gate
	Random      func() float64 // from 0 to 1
}

// Scheduler gives requests their turns.
type Scheduler struct {
	cfg   Config
	users map[string]*user
	gates map[string]*gate
	held  map[string]bool // gateways
	swept time.Time
	seed  maphash.Seed

	young   *list.List // requests in flight that do not hang, oldest first
	silent  int        // number of young requests at gates that do not answer
	hanging int        // requests in flight that hang
	hangers int        // users with hanging requests
	waiting int        // requests
	lines   map[*gate]struct{}
	starved []*gate // with requests in line that wait for a place of the host

	refused refusals

	tookAny   time.Time              // the last success of any gate
	unreached map[string]unreachable // by gate
}

// Turn is a request that waits for its place, or is in flight.
type Turn struct {
	User, Gate string

	// Ready is closed when the request has its place. It is nil if the place was free at once.
	Ready <-chan struct{}

	ready   chan struct{}
	state   state
	began   time.Time
	isProbe bool
	class   class
	user    *user
	gate    *gate
	place   *list.Element // in Scheduler.young
}

type state int

const (
	waiting state = iota // for other requests of its user
	inLine               // of its gate
	young                // in flight
	hanging              // in flight for hangAfter or longer
	ended
)

type user struct {
	waiting []*Turn
	inLine  int
	young   []*Turn
	hanging []*Turn
	refused refusals
}

// refusals counts requests that were put off, in this window and the one before.
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

// New returns an empty scheduler.
func New(cfg Config) *Scheduler {
	return &Scheduler{
		cfg: cfg, users: map[string]*user{}, gates: map[string]*gate{}, held: map[string]bool{}, unreached: map[string]unreachable{},
		lines: map[*gate]struct{}{}, young: list.New(), seed: maphash.MakeSeed(),
	}
}

func (s *Scheduler) gate(name string) *gate {
	g := s.gates[name]
	if g == nil {
		g = &gate{limit: min(newGate, s.cfg.MaxPerGate), isSilent: true}
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

// Admit gives a request its turn, which the caller must [Scheduler.End]. The turn may
// wait for its place; see [Turn.Ready]. If turn is nil, the request is put off for delay.
// At a closed gate, delay is 0, and [Scheduler.Claimable] returns 0 until the next probe.
func (s *Scheduler) Admit(now time.Time, userName, gateName string) (turn *Turn, delay time.Duration) {
	s.sweep(now)
	s.age(now)
	g, u := s.gate(gateName), s.user(userName)
	g.usedAt = now
	g.closeIfSilent(now)
	isProbe, passes := s.passes(g, userName, gateName, now)
	if !passes {
		return nil, 0
	}
	t := &Turn{User: userName, Gate: gateName, user: u, gate: g, isProbe: isProbe}
	switch {
	case isProbe && len(u.young) < maxUser && u.inFlight() < maxUserAll:
		g.beginProbe(now)
		s.begin(t, now)
		return t, 0
	case isProbe: // another user's request will be the probe
		return nil, s.putOff(1)
	case u.inLine+len(u.waiting) >= maxUserWaiting:
		return nil, s.putOff(float64(u.refused.add(now, time.Second)) / manyOfUser)
	case s.waiting >= maxWaiting:
		return nil, s.putOff(float64(s.refused.add(now, time.Second)) / manyOfAll)
	}
	u.waiting = append(u.waiting, t)
	s.waiting++
	if s.advance(u, now); t.state != young {
		t.ready = make(chan struct{})
		t.Ready = t.ready
	}
	return t, 0
}

// PutOff returns how long to put off a request that has waited for its place in vain.
func (s *Scheduler) PutOff(t *Turn) time.Duration {
	if t.gate.closedAt.IsZero() {
		return s.putOff(1)
	}
	return 0
}

// passes reports whether a gate admits a request, and whether the request is a probe of a
// closed gate.
func (s *Scheduler) passes(g *gate, userName, name string, now time.Time) (isProbe, passes bool) {
	switch {
	case s.isHeld(name):
		return false, false
	case g.closedAt.IsZero():
		return false, true
	case !now.Before(g.probeAt):
		return true, true
	case g.isBlocked || g.failing.has(s.hash(userName)):
		return false, false
	case now.Sub(g.triedAt) >= tryEvery:
		g.triedAt = now
		return true, true
	}
	return false, g.waiting() < maxClosedLine // the request waits: the probe may open the gate
}

// Claimable returns how many backlogs of a gate to claim, and whether the gate is closed.
func (s *Scheduler) Claimable(now time.Time, gate string) (most int, isClosed bool) {
	g := s.gates[gate]
	switch {
	case s.isHeld(gate):
		return 0, true
	case g == nil:
		return maxClaims, false
	}
	if g.closeIfSilent(now); g.closedAt.IsZero() {
		return max(0, min(maxClaims, 2*g.rampLimit(now))-g.waiting()), false
	}
	if now.Before(g.probeAt) {
		return 0, true
	}
	return probeClaims, true
}

func (s *Scheduler) hash(user string) uint64 { return maphash.String(s.seed, user) }

// putOff returns a delay for work without a place. A load above 1 makes it longer.
func (s *Scheduler) putOff(load float64) time.Duration {
	random := 1 + 2*s.cfg.Random()
	return min(time.Duration(float64(shortDelay)*random*max(1, load)), longDelay)
}

// advance moves a user's waiting requests to the lines of their gates, and serves these
// lines. No user has more than maxUser requests in lines.
func (s *Scheduler) advance(u *user, now time.Time) {
	for len(u.waiting) > 0 && u.inLine < maxUser && len(u.young) < maxUser && u.inFlight() < maxUserAll {
		t := u.waiting[0]
		u.waiting = u.waiting[1:]
		t.state = inLine
		u.inLine++
		class := s.classOf(t)
		t.gate.lines[class] = append(t.gate.lines[class], t)
		s.lines[t.gate] = struct{}{}
		if s.serve(t.gate, now); len(u.waiting) > 0 && u.waiting[0] == t { // the user may not begin it now
			return
		}
	}
}

// serve begins the requests in the lines of a gate, as long as there are places.
func (s *Scheduler) serve(g *gate, now time.Time) {
	for class := range classes {
		for len(g.lines[class]) > 0 && s.serveFirst(g, class, now) {
		}
	}
	if g.waiting() == 0 {
		g.lines = [classes][]*Turn{}
		delete(s.lines, g)
	}
}

// serveFirst takes the first request from a line, unless there is no place for it.
func (s *Scheduler) serveFirst(g *gate, line class, now time.Time) bool {
	t := g.lines[line][0]
	switch class := s.classOf(t); {
	case t.state != inLine: // it has ended
	case class != line:
		g.lines[class] = append(g.lines[class], t)
	case !g.hasPlace(class, now):
		return false
	case !s.mayBegin(t, class):
		t.state = waiting
		t.user.inLine--
		t.user.waiting = slices.Insert(t.user.waiting, 0, t)
	case !s.hasPlace(t):
		if !g.isStarved {
			g.isStarved = true
			s.starved = append(s.starved, g)
		}
		return false
	default:
		t.user.inLine--
		s.waiting--
		g.ramp++
		s.begin(t, now)
	}
	g.lines[line] = g.lines[line][1:]
	return true
}

// classOf returns the class of a request, by its user's experience at the gate.
func (s *Scheduler) classOf(t *Turn) class {
	user, answers := s.hash(t.User), &t.gate.answers
	switch {
	case t.user.hangsAt(t.gate), answers.hung.has(user):
		return hangs
	case answers.all.has(user):
		return known
	}
	return unknown
}

func (u *user) hangsAt(g *gate) bool {
	return slices.ContainsFunc(u.hanging, func(t *Turn) bool { return t.gate == g })
}

// mayBegin reports whether a user may have one more request in flight. Users with requests
// that hang share half of the host's places. A user above this share may only begin
// requests to gates that answer, where no request of the user has hung.
func (s *Scheduler) mayBegin(t *Turn, c class) bool {
	u := t.user
	if len(u.young) >= maxUser || u.inFlight() >= maxUserAll {
		return false
	}
	if c == unknown && slices.ContainsFunc(u.young, func(other *Turn) bool { return other.gate == t.gate }) {
		return false // until the user's first request to the gate is answered, or hangs
	}
	if len(u.hanging) < max(1, s.cfg.MaxInFlight/2/max(1, s.hangers)) {
		return true
	}
	return !t.gate.isSilent && c != hangs
}

// hasPlace reports whether the host has a place for a request. Half of MaxInFlight is for
// gates that answer. The other half is for requests that hang, and for silent gates.
// Beyond this half, a user with nothing in flight may still begin a request to a silent
// gate: a new gate is silent, too, and gates that hang must not keep the host from it.
func (s *Scheduler) hasPlace(t *Turn) bool {
	half := s.cfg.MaxInFlight / 2
	if !t.gate.isSilent {
		return s.young.Len()-s.silent < half
	}
	slow := s.silent + s.hanging
	return slow < half || t.user.inFlight() == 0 && slow < s.cfg.MaxInFlight
}

func (u *user) inFlight() int { return len(u.young) + len(u.hanging) }

func (s *Scheduler) begin(t *Turn, now time.Time) {
	t.state, t.began, t.class = young, now, s.classOf(t)
	t.place = s.young.PushBack(t)
	t.user.young = append(t.user.young, t)
	t.gate.young[t.class]++
	if t.gate.isSilent {
		s.silent++
	}
	if t.ready != nil {
		close(t.ready)
	}
}

// age finds the requests that hang.
func (s *Scheduler) age(now time.Time) {
	for e := s.young.Front(); e != nil && now.Sub(e.Value.(*Turn).began) >= hangAfter; e = s.young.Front() {
		t := e.Value.(*Turn)
		s.leaveYoung(t)
		t.state = hanging
		if len(t.user.hanging) == 0 {
			s.hangers++
		}
		t.user.hanging = append(t.user.hanging, t)
		s.hanging++
		t.gate.answers.at(now).hung.add(s.hash(t.User))
		if t.gate.answered.Before(t.began) {
			s.setSilent(t.gate, true)
			s.fails(t, now)
		}
		s.advance(t.user, now)
		s.serve(t.gate, now)
	}
}

func (s *Scheduler) leaveYoung(t *Turn) {
	s.young.Remove(t.place)
	t.user.young = slices.DeleteFunc(t.user.young, func(other *Turn) bool { return other == t })
	t.gate.young[t.class]--
	if t.gate.isSilent {
		s.silent--
	}
}

func (s *Scheduler) setSilent(g *gate, isSilent bool) {
	if g.isSilent == isSilent {
		return
	}
	g.isSilent = isSilent
	if isSilent {
		s.silent += g.inFlight()
	} else {
		s.silent -= g.inFlight()
	}
}

// Tick serves all lines. Call it now and then while requests wait: time alone frees places,
// because requests begin to hang, and because gates admit more each second after an outage.
func (s *Scheduler) Tick(now time.Time) {
	s.age(now)
	for g := range s.lines {
		s.serve(g, now)
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

// End ends a turn. Wait is how long a gateway asks to wait, for Throttled.
func (s *Scheduler) End(now time.Time, t *Turn, r Result, wait time.Duration) {
	s.age(now)
	if s.leave(t) {
		s.note(t, r, wait, now)
	}
	s.advance(t.user, now)
	s.serve(t.gate, now)
	starved := s.starved
	s.starved = nil
	for _, g := range starved {
		g.isStarved = false
		s.serve(g, now)
	}
}

// leave frees the place of a turn, and reports whether it had one.
func (s *Scheduler) leave(t *Turn) (hadPlace bool) {
	before := t.state
	t.state = ended
	switch before {
	case waiting:
		t.user.waiting = slices.DeleteFunc(t.user.waiting, func(other *Turn) bool { return other == t })
		s.waiting--
	case inLine: // serve removes it from the line
		t.user.inLine--
		s.waiting--
	case young:
		s.leaveYoung(t)
		return true
	case hanging:
		t.user.hanging = slices.DeleteFunc(t.user.hanging, func(other *Turn) bool { return other == t })
		s.hanging--
		if len(t.user.hanging) == 0 {
			s.hangers--
		}
		return true
	}
	return false
}

// note learns from the result of a request.
func (s *Scheduler) note(t *Turn, r Result, wait time.Duration, now time.Time) {
	g := t.gate
	if t.isProbe {
		g.endProbe(now, r)
	}
	switch r {
	case Taken:
		s.tookAny = now
		s.setSilent(g, false)
		g.takes(now, min(now.Sub(t.began), hangAfter), s.cfg.MaxPerGate)
		g.answers.at(now).add(s.hash(t.User))
	case Unreached:
		s.unreached[t.Gate] = unreachable{now, t.User}
		fallthrough
	case Failed:
		s.fails(t, now)
		g.closeIfSilent(now)
	case Throttled:
		g.throttle(now, s.hash(t.User), wait)
	case Blocked:
		g.close(now, blockedLasts)
		g.isBlocked = true
	}
}

// fails notes a failure at the gate. Requests of class hangs do not count: a user whose
// requests hang must not close the gate for other users.
func (s *Scheduler) fails(t *Turn, now time.Time) {
	if t.class != hangs {
		t.gate.fails(now, s.hash(t.User))
	}
}

// IsOpen reports whether a gate is open.
func (s *Scheduler) IsOpen(gate string) bool {
	g := s.gates[gate]
	return !s.isHeld(gate) && (g == nil || g.closedAt.IsZero())
}

// ClosedFor returns for how long a gate was closed since a time, by its last closure.
func (s *Scheduler) ClosedFor(now, since time.Time, gate string) time.Duration {
	if g := s.gates[gate]; g != nil {
		return g.closedFor(now, since)
	}
	return 0
}

const maxClaims = 256 // at once

// Capacity returns how many backlogs to claim. A host that is cut off tries a few.
func (s *Scheduler) Capacity(now time.Time) int {
	if s.IsCutOff(now) {
		return closeUsers
	}
	return max(1, min(maxClaims, maxWaiting-s.waiting))
}

const forgetAfter = 2 * time.Hour // of an unused gate

func (s *Scheduler) sweep(now time.Time) {
	if now.Sub(s.swept) < time.Minute {
		return
	}
	s.swept = now
	inFlight := map[*gate]bool{}
	for name, u := range s.users {
		for _, t := range u.hanging {
			inFlight[t.gate] = true
		}
		if u.inFlight()+u.inLine+len(u.waiting) == 0 && now.Sub(u.refused.began) > time.Minute {
			delete(s.users, name)
		}
	}
	for name, g := range s.gates {
		if g.inFlight() == 0 && g.waiting() == 0 && !inFlight[g] && now.Sub(g.usedAt) > forgetAfter {
			delete(s.gates, name)
		}
	}
	for name, u := range s.unreached {
		if now.Sub(u.at) > time.Minute {
			delete(s.unreached, name)
		}
	}
}

// Stats is the current state of a scheduler.
type Stats struct {
	InFlight, Hanging  int // requests
	Waiting            int // requests, for a place
	Open, Closed, Held int // gates
	Blocked            int // gates to which this host may not connect
	Stopped            int // gates at the rejection limit
}

// Waiting returns how many requests wait for a place.
func (s *Scheduler) Waiting() int { return s.waiting }

// WaitingAt returns how many requests are in the line of a gate.
func (s *Scheduler) WaitingAt(gate string) int {
	if g := s.gates[gate]; g != nil {
		return g.waiting()
	}
	return 0
}

// Stats returns the current state.
func (s *Scheduler) Stats() (stats Stats) {
	stats.InFlight, stats.Hanging, stats.Waiting = s.young.Len(), s.hanging, s.waiting
	for name, g := range s.gates {
		if g.answers.isStopped {
			stats.Stopped++
		}
		switch {
		case s.isHeld(name):
			stats.Held++
		case g.closedAt.IsZero():
			stats.Open++
		case g.isBlocked:
			stats.Blocked++
		default:
			stats.Closed++
		}
	}
	return stats
}
