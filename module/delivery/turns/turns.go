// Package turns schedules the requests of a host; its API may change at any time. It
// bounds the requests of each user and gateway, so that none delays others. It has no
// I/O and no clock, and is not safe for concurrent use.
//
// A gate is a gateway and an app, which fail together. Limits count users, because a
// user can invent any number of pushers, gateways and apps.
package turns

import (
	"cmp"
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
	maxUserWaiting = 16 // requests that wait for a place; see [Scheduler.mayWait]

	// A quarter of these bounds is for requests to quick gates that have answered the user, and
	// another for requests that do not repeat a failed one; see [Scheduler.shareOf]. A user's
	// dead pushers delay no well one so.
	shares = 4

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
	manyOfUser = 8 // with a full share; see [Scheduler.shareOf]
	manyOfAll  = 1000
)

// Config bounds a [Scheduler].
type Config struct {
	MaxInFlight int            // half for slow gates and requests that hang; see [Scheduler.hasPlace]
	MaxPerGate  int            // to one gate
	Random      func() float64 // from 0 to 1
}

// Scheduler gives requests their turns.
type Scheduler struct {
	cfg      Config
	users    map[string]*user
	gates    map[string]*gate
	gateways map[string]int // requests in flight
	swept    time.Time
	seed     maphash.Seed

	young    *list.List         // requests in flight that do not hang, oldest first
	slow     int                // number of young requests at slow gates, and of late ones
	hanging  int                // requests in flight that hang
	waiting  int                // requests
	admitted int                // requests so far
	lined    map[*gate]struct{} // gates with requests in line
	starved  map[*gate]struct{} // these of them that wait for a place of the host

	refused refusals

	answered   recent                 // gates that have answered, whatever they said
	answeredAt time.Time              // the last answer of any gate
	unreached  map[string]unreachable // by gate
}

// Turn is a request that waits for its place, or is in flight.
type Turn struct {
	User, Gate string

	// Ready is closed when the request has its place. It is nil if the place was free at once.
	Ready <-chan struct{}

	ready   chan struct{}
	state   state
	number  int // counts up with each admission
	began   time.Time
	isProbe bool
	class   class // when it began
	try     Try
	isLate  bool // it has left its place at the gate; see Scheduler.release
	hangs   bool // it hangs, while the gate answers others
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
	refused [shares + 1]refusals // by share: a gate that fails makes no other wait longer
}

func (u *user) inFlight() int { return len(u.young) + len(u.hanging) }

// refusals counts requests that were put off, in this second and the one before.
type refusals struct {
	began     time.Time
	n, before int
}

func (r *refusals) add(now time.Time) int {
	if passed := now.Sub(r.began); passed > time.Second {
		if r.before = r.n; passed > 2*time.Second {
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
		cfg: cfg, users: map[string]*user{}, gates: map[string]*gate{}, gateways: map[string]int{},
		unreached: map[string]unreachable{}, lined: map[*gate]struct{}{}, starved: map[*gate]struct{}{}, young: list.New(), seed: maphash.MakeSeed(),
	}
}

func (s *Scheduler) gate(name string) *gate {
	g := s.gates[name]
	if g == nil {
		g = &gate{gateway: gatewayOf(name), limit: min(newGate, s.cfg.MaxPerGate), isSlow: true}
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

func (s *Scheduler) hash(user string) uint64 { return maphash.String(s.seed, user) }

func gatewayOf(gate string) string {
	gateway, _, _ := strings.Cut(gate, " ")
	return gateway
}

// Try says what is known before a request.
type Try int

// The tries.
const (
	FirstTry       Try = iota
	Retry              // the pusher's last request has failed
	RetryOfFailing     // the user's last request at the gate has failed or hangs, as the queue says
)

// Admit gives a request its turn, which the caller must [Scheduler.End]. The turn may
// wait for its place; see [Turn.Ready]. If turn is nil, the request is put off for delay.
// At a closed gate, delay is 0, and [Scheduler.Claimable] returns 0 until the next probe.
// Users who fail there go last, until one of their requests is answered.
func (s *Scheduler) Admit(now time.Time, userName, gateName string, try Try) (turn *Turn, delay time.Duration) {
	s.sweep(now)
	s.age(now)
	g, u := s.gate(gateName), s.user(userName)
	g.usedAt = now
	if try == RetryOfFailing {
		g.answers.at(now).failing.add(s.hash(userName))
	}
	g.closeIfSilent(now)
	t := &Turn{User: userName, Gate: gateName, user: u, gate: g, number: s.admitted, try: try}
	share := s.shareOf(t, s.classOf(t))
	s.admitted++
	switch {
	case g.isClosed() && !g.mayWaitForProbe(s.classOf(t), now):
		g.noLookUntil = now.Add(tryEvery)
		return nil, 0
	case u.inLine+len(u.waiting) >= max(1, s.mayWait()*share/shares):
		return nil, s.putOff(float64(u.refused[share].add(now)*shares) / float64(manyOfUser*share))
	}
	u.waiting = append(u.waiting, t)
	s.waiting++
	switch s.advance(u, now); {
	case t.state == young:
	case s.waiting > maxWaiting:
		s.leave(t)
		return nil, s.putOff(float64(s.refused.add(now)) / manyOfAll)
	default:
		t.ready = make(chan struct{})
		t.Ready = t.ready
	}
	return t, 0
}

// mayWait returns how many requests of a user may wait. The more requests wait, the fewer
// may be of one user. Half of maxWaiting is for users without any others.
func (s *Scheduler) mayWait() int {
	return max(1, maxUserWaiting-s.waiting*maxUserWaiting/(maxWaiting/2))
}

// Room returns how many more requests of a user may wait.
func (s *Scheduler) Room(userName string) int {
	room := s.mayWait()
	if u := s.users[userName]; u != nil {
		room -= u.inLine + len(u.waiting)
	}
	return max(0, min(room, maxWaiting-s.waiting))
}

// shareOf returns how much of the bounds of its user a request may use, of [shares].
func (s *Scheduler) shareOf(t *Turn, c class) int {
	share := shares
	if t.gate.isSlow || c != classKnown && c != classFurther {
		share--
	}
	if t.try != FirstTry || c == classFailing {
		share--
	}
	return share
}

// PutOff returns how long to put off a request that has waited for its place in vain.
func (s *Scheduler) PutOff(t *Turn) time.Duration {
	switch {
	case t.gate.isClosed():
		return 0
	case isAt(t.user.young, t.gate): // its answer, or its silence, decides
		return hangAfter
	}
	return s.putOff(1)
}

// putOff returns a delay for work without a place. A load above 1 makes it longer.
func (s *Scheduler) putOff(load float64) time.Duration {
	random := 1 + 2*s.cfg.Random()
	return min(time.Duration(float64(shortDelay)*random*max(1, load)), longDelay)
}

// Limit is what a look may claim at a gate.
type Limit struct {
	Most, Failing int  // users, and how many of them may be users who fail there
	IsDown        bool // the gate is closed, and has accepted nothing for some time: one that opens and closes serves some users
	IsUnreached   bool // the last request could not reach it
}

// Claimable returns what a look may claim at a gate.
func (s *Scheduler) Claimable(now time.Time, gate string) Limit {
	s.age(now)
	g := s.gates[gate]
	if g == nil {
		return Limit{Most: maxClaims, Failing: min(newGate, s.cfg.MaxPerGate) / 4}
	}
	s.release(g, now)
	if g.closeIfSilent(now); g.isClosed() {
		most, failing := g.probes(now)
		return Limit{most, failing, g.isDown(now), g.isUnreached}
	}
	most := max(0, min(maxClaims, 2*g.rampLimit(now))-g.waiting())
	return Limit{most, min(most, max(0, g.failingPlaces()-g.young[classFailing]-len(g.lines[classFailing]))), false, g.isUnreached}
}

// advance moves a user's waiting requests to the lines of their gates, and serves these
// lines. No user has more than maxUser requests in lines.
func (s *Scheduler) advance(u *user, now time.Time) {
	for _, t := range slices.Clone(u.waiting) {
		class := s.classOf(t)
		if u.inLine >= maxUser*s.shareOf(t, class)/shares || !s.mayBegin(t, class) {
			continue
		}
		u.waiting = slices.DeleteFunc(u.waiting, func(other *Turn) bool { return other == t })
		t.state = inLine
		u.inLine++
		t.gate.lines[class] = append(t.gate.lines[class], t)
		s.lined[t.gate] = struct{}{}
		s.serve(t.gate, now)
	}
}

// release takes the places at a gate from requests that take much longer than answers there.
// Others get these places, so that users whose requests hang delay them by patience at most.
func (s *Scheduler) release(g *gate, now time.Time) {
	for len(g.placed) > 0 && g.late < s.cfg.MaxPerGate && now.Sub(g.placed[0].began) >= g.patience() {
		t := g.placed[0]
		g.placed = g.placed[1:]
		g.young[t.class]--
		g.late++
		if t.isLate = true; !g.isSlow {
			s.slow++
		}
	}
}

// serve begins the requests in the lines of a gate, as long as there are places.
func (s *Scheduler) serve(g *gate, now time.Time) {
	s.release(g, now)
	for t := s.next(g, now); t != nil; t = s.next(g, now) {
		if !s.hasPlace(t) {
			s.starved[g] = struct{}{}
			return
		}
		s.begin(t, now)
	}
	delete(s.starved, g)
	if g.waiting() == 0 {
		delete(s.lined, g)
		g.lines = [classes][]*Turn{}
	}
}

// maxCompared is how many starved gates compete for a free place. Tick serves all.
const maxCompared = 64

// serveStarved gives free places of the host to gates that wait for one, at random if there
// are many.
func (s *Scheduler) serveStarved(now time.Time) {
	for len(s.starved) > 0 {
		var first *Turn
		compared := 0
		for g := range s.starved {
			if compared++; compared > maxCompared {
				break
			}
			t := s.next(g, now)
			if t == nil {
				delete(s.starved, g)
			} else if s.hasPlace(t) && (first == nil || s.compare(t, first) < 0) {
				first = t
			}
		}
		if first == nil {
			return
		}
		s.begin(first, now)
	}
}

// compare orders requests that wait for a place of the host. Users with the fewest requests
// in flight go first, whatever gateways they name. Then gateways go first that do not have
// more than their share of the places.
func (s *Scheduler) compare(a, b *Turn) int {
	return cmp.Or(cmp.Compare(a.user.inFlight(), b.user.inFlight()), cmp.Compare(s.aboveShare(a), s.aboveShare(b)), cmp.Compare(a.number, b.number))
}

func (s *Scheduler) aboveShare(t *Turn) int {
	return max(0, s.gateways[t.gate.gateway]-s.cfg.MaxInFlight/2/gatewayShare)
}

// next returns the first request in the lines of a gate that the gate and the bounds of its
// user allow to begin.
func (s *Scheduler) next(g *gate, now time.Time) *Turn {
lines:
	for class := range classes {
		for len(g.lines[class]) > 0 {
			t := g.lines[class][0]
			is := s.classOf(t)
			switch {
			case t.state != inLine: // it has ended
			case is != class:
				g.lines[is] = append(g.lines[is], t)
			case !g.hasPlace(class, now):
				continue lines
			case !s.mayBegin(t, class):
				t.state = waiting
				t.user.inLine--
				t.user.waiting = slices.Insert(t.user.waiting, 0, t)
			default:
				t.class = class
				return t
			}
			g.lines[class] = g.lines[class][1:]
		}
	}
	return nil
}

// MayClaim reports whether this host may claim what is added for a user. It leaves a gate that it cannot reach to other
// hosts. At a closed gate, the next probes are by users with nothing that waits: looks would find them late among many
// who fail.
func (s *Scheduler) MayClaim(now time.Time, userName, gateName string) bool {
	g := s.gates[gateName]
	if g == nil || !g.isClosed() {
		return s.MayReach(now, gateName)
	}
	c := s.classAt(userName, g)
	return c != classFailing && !g.isBlocked && len(g.lines[c]) < maxNewProbes && s.MayReach(now, gateName)
}

// classAt is classOf for a user who may be unknown.
func (s *Scheduler) classAt(userName string, g *gate) class {
	u := s.users[userName]
	if u == nil {
		u = &user{}
	}
	return s.classOf(&Turn{User: userName, user: u, gate: g})
}

// MayProbe reports whether a user whom a look has returned may have a request at a gate. At a
// closed gate that is the next probe: of each class, one user. A user whom the gate has answered
// lately is found so among many others. See [RetryOfFailing] for fails.
func (s *Scheduler) MayProbe(now time.Time, userName, gateName string, fails bool) bool {
	g := s.gates[gateName]
	if g == nil || !g.isClosed() {
		return true
	}
	c := s.classAt(userName, g)
	if fails {
		c = classFailing
	}
	if g.isProbeDue(c, now) && now.Sub(g.chosenAt[c]) >= tryEvery/2 {
		g.chosenAt[c] = now
		return true
	}
	g.noLookUntil = now.Add(tryEvery)
	return false
}

// classOf returns the class of a request, by its user's experience at the gate.
func (s *Scheduler) classOf(t *Turn) class {
	user, answers := s.hash(t.User), &t.gate.answers
	switch {
	case isAt(t.user.hanging, t.gate), isLateAt(t.user.young, t.gate), answers.failing.has(user), t.gate.isClosed() && answers.failed.has(user):
		return classFailing
	case answers.all.has(user) && isAt(t.user.young, t.gate):
		return classFurther
	case answers.all.has(user):
		return classKnown
	}
	return classUnknown
}

func isAt(turns []*Turn, g *gate) bool {
	return slices.ContainsFunc(turns, func(t *Turn) bool { return t.gate == g })
}

func isLateAt(turns []*Turn, g *gate) bool {
	return slices.ContainsFunc(turns, func(t *Turn) bool { return t.gate == g && t.isLate })
}

// mayBegin reports whether a user may have one more request in flight: to a gate that has not
// answered the user, only after this request was answered, or hangs.
func (s *Scheduler) mayBegin(t *Turn, c class) bool {
	u, share := t.user, s.shareOf(t, c)
	return len(u.young) < maxUser*share/shares && u.inFlight() < maxUserAll*share/shares && (c == classFurther || !isAt(u.young, t.gate))
}

// hasPlace reports whether the host has a place for a request. Half of MaxInFlight is for
// gates that answer quickly. The other half is for requests that hang, and for slow gates.
// Beyond this half, a user with nothing in flight may still begin a request to a slow
// gate: a new gate is slow, too, and gates that hang must not keep the host from it.
func (s *Scheduler) hasPlace(t *Turn) bool {
	half := s.cfg.MaxInFlight / 2
	if !t.gate.isSlow {
		return s.young.Len()-s.slow < half
	}
	slow := s.slow + s.hanging
	return slow < half || t.user.inFlight() == 0 && slow < s.cfg.MaxInFlight
}

// begin begins the request that next has returned.
func (s *Scheduler) begin(t *Turn, now time.Time) {
	g := t.gate
	g.lines[t.class], g.placed = g.lines[t.class][1:], append(g.placed, t)
	t.user.inLine--
	s.waiting--
	t.state, t.began, t.isProbe = young, now, g.isClosed()
	t.place = s.young.PushBack(t)
	t.user.young = append(t.user.young, t)
	s.gateways[g.gateway]++
	g.turns++
	if g.begin(t.class, now); g.isSlow {
		s.slow++
	}
	if t.ready != nil {
		close(t.ready)
	}
}

// age finds the requests that hang. If the gate has answered others meanwhile, it is the user
// that fails there. Otherwise it may be the gate.
func (s *Scheduler) age(now time.Time) {
	var aged []*Turn
	for e := s.young.Front(); e != nil && now.Sub(e.Value.(*Turn).began) >= hangAfter; e = s.young.Front() {
		t := e.Value.(*Turn)
		g, user := t.gate, s.hash(t.User)
		s.leaveYoung(t)
		t.state = hanging
		t.user.hanging = append(t.user.hanging, t)
		s.hanging++
		if t.class == classFailing {
			g.failingMore = 0
		}
		isAnswering, failing := !g.answered.Before(t.began), &g.answers.at(now).failing
		if !isAnswering {
			if s.setSlow(g, true); g.isClosed() { // it failed for all: another user is the next probe
				g.answers.failed, g.newlyFailed = recent{}, 0
			}
			g.fails(now, user)
		}
		if t.hangs = isAnswering || !g.isClosed(); t.hangs {
			failing.add(user)
		}
		aged = append(aged, t)
	}
	for _, t := range aged {
		s.advance(t.user, now)
		s.serve(t.gate, now)
	}
}

func (s *Scheduler) leaveYoung(t *Turn) {
	s.young.Remove(t.place)
	t.user.young = without(t.user.young, t)
	if t.isLate {
		t.gate.late--
		s.slow--
		return
	}
	t.gate.young[t.class]--
	t.gate.placed = without(t.gate.placed, t)
	if t.gate.isSlow {
		s.slow--
	}
}

func without(turns []*Turn, t *Turn) []*Turn {
	return slices.DeleteFunc(turns, func(other *Turn) bool { return other == t })
}

func (s *Scheduler) setSlow(g *gate, isSlow bool) {
	switch {
	case isSlow && !g.isSlow:
		s.slow += g.inFlight()
	case !isSlow && g.isSlow:
		s.slow -= g.inFlight()
	}
	g.isSlow = isSlow
}

// Tick serves all lines. Call it now and then while requests wait: time alone frees places,
// because requests begin to hang, closed gates are probed, and gates admit more each second
// after an outage.
func (s *Scheduler) Tick(now time.Time) {
	s.age(now)
	for g := range s.lined {
		s.serve(g, now)
	}
}

// Result is the result of a request.
type Result int

// The results.
const (
	Taken     Result = iota // the gateway works
	Answered                // it has answered, and may not work
	Failed                  // it may not work
	Unreached               // it failed before anything was sent
	Blocked                 // this host may not connect to it
	Neutral                 // unknown
	Unused                  // nothing was sent
)

// End ends a turn.
func (s *Scheduler) End(now time.Time, t *Turn, r Result) {
	s.age(now)
	hung := t.state == hanging
	if s.leave(t) {
		s.note(now, t, r, hung)
	}
	s.serveStarved(now)
	s.advance(t.user, now)
	s.serve(t.gate, now)
}

// leave frees the place of a turn, and reports whether it had one.
func (s *Scheduler) leave(t *Turn) (hadPlace bool) {
	before, u := t.state, t.user
	t.state = ended
	switch before {
	case waiting:
		u.waiting = without(u.waiting, t)
		s.waiting--
		return false
	case inLine: // next removes it from the line
		u.inLine--
		s.waiting--
		return false
	case young:
		s.leaveYoung(t)
	case hanging:
		u.hanging = without(u.hanging, t)
		s.hanging--
	case ended:
		return false
	}
	t.gate.turns--
	if s.gateways[t.gate.gateway]--; s.gateways[t.gate.gateway] == 0 {
		delete(s.gateways, t.gate.gateway)
	}
	return true
}

// note learns from the result of a request. The failure of a request that hung counted then.
func (s *Scheduler) note(now time.Time, t *Turn, r Result, hung bool) {
	g, user := t.gate, s.hash(t.User)
	if t.isProbe {
		g.endProbe(now, r)
	}
	switch r {
	case Taken, Answered:
		s.addAnswer(now, t)
	case Unreached:
		s.addUnreached(now, t)
	}
	switch r {
	case Taken:
		g.takes(now, min(now.Sub(t.began), hangAfter), s.cfg.MaxPerGate)
		s.setSlow(g, g.mean > slowAfter)
		g.answers.at(now).add(user)
		if t.class == classFailing && !hung {
			g.failingMore++
		}
	case Answered, Failed, Unreached:
		if !hung {
			g.fails(now, user)
		}
		g.closeIfSilent(now)
	case Blocked:
		g.block(now)
	}
}

// Hangs reports whether a request in flight hangs while its gate answers others. It hangs for
// hangAfter without an answer, which is decided once.
func (s *Scheduler) Hangs(now time.Time, t *Turn) bool {
	s.age(now)
	return t.hangs
}

// IsOpen reports whether a gate is open.
func (s *Scheduler) IsOpen(gate string) bool {
	g := s.gates[gate]
	return g == nil || !g.isClosed()
}

// IsWell reports whether a failure at a gate is the pusher's: the gate has accepted something since
// the pusher failed before, or is open and has not failed for several users since its last success.
// Last is the time since the pusher failed, 0 for none.
func (s *Scheduler) IsWell(now time.Time, gate string, last time.Duration) bool {
	g := s.gates[gate]
	return s.HasTaken(now, gate, last) || s.IsOpen(gate) && (g == nil || g.newlyFailed < closeUsers)
}

// HasTaken reports whether a gate has accepted something in the last time.
func (s *Scheduler) HasTaken(now time.Time, gate string, last time.Duration) bool {
	g := s.gates[gate]
	return g != nil && g.answered.After(now.Add(-last))
}

// WasClosed reports whether a gate was closed since a time.
func (s *Scheduler) WasClosed(since time.Time, gate string) bool {
	g := s.gates[gate]
	return g != nil && (g.isClosed() || g.openedAt.After(since))
}

const maxClaims = 256 // at once

// Capacity returns how many users a look may return. A host that is cut off tries a few.
func (s *Scheduler) Capacity(now time.Time) int {
	s.sweep(now)
	if s.IsCutOff(now) {
		return closeUsers
	}
	return max(1, min(maxClaims, maxWaiting-s.waiting))
}

// When an unused gate is forgotten. Names of gates are free: gates that several users have
// closed are kept for longer, and gates that the rejection limit needs.
const (
	forgetAfter       = time.Minute
	forgetClosedAfter = 2 * time.Hour
)

func (g *gate) isForgotten(now time.Time) bool {
	unused := now.Sub(g.usedAt)
	switch {
	case g.turns+g.waiting() > 0 || unused < forgetAfter:
		return false
	case g.isClosed():
		return unused > forgetClosedAfter
	}
	answers := g.answers.at(now)
	return answers.rejected.len() == 0 && answers.all.len() < rejectUsers
}

func (s *Scheduler) sweep(now time.Time) {
	if now.Sub(s.swept) < time.Minute {
		return
	}
	s.swept = now
	for name, u := range s.users {
		isRefused := slices.ContainsFunc(u.refused[:], func(r refusals) bool { return now.Sub(r.began) <= time.Minute })
		if u.inFlight()+u.inLine+len(u.waiting) == 0 && !isRefused {
			delete(s.users, name)
		}
	}
	kept := map[string]*gate{} // a map never gets smaller
	for name, g := range s.gates {
		if !g.isForgotten(now) {
			kept[name] = g
		}
	}
	s.gates = kept
	for name, u := range s.unreached {
		if now.Sub(u.at) > time.Minute {
			delete(s.unreached, name)
		}
	}
}

// Stats is the current state of a scheduler.
type Stats struct {
	InFlight, Hanging int // requests
	Waiting           int // requests, for a place
	Open, Closed      int // gates
	Blocked           int // gates to which this host may not connect
	Stopped           int // gates at the rejection limit
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
	for _, g := range s.gates {
		if g.answers.isStopped {
			stats.Stopped++
		}
		switch {
		case !g.isClosed():
			stats.Open++
		case g.isBlocked:
			stats.Blocked++
		default:
			stats.Closed++
		}
	}
	return stats
}
