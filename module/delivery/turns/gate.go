package turns

import (
	"math"
	"time"
)

// The places of a gate.
const (
	newGate  = 32 // before its first answer
	busyGate = 16 // at least, while users are answered
	minGate  = 2  // at least
	settle   = time.Second

	// slowAfter is the mean time of a gate's answers above which the gate is slow.
	slowAfter = 500 * time.Millisecond

	// A request is late after lateFactor times the mean time of the gate's answers, but not
	// before leastPatience and not after hangAfter.
	lateFactor    = 4
	leastPatience = 250 * time.Millisecond
	newPatience   = 500 * time.Millisecond // at a gate without answers

	// gatewayShare is the part of a half of the host's places that is a gateway's share.
	gatewayShare = 4
)

// When gates close and open.
const (
	closeAfter    = 5 * time.Second // without a success
	closeUsers    = 3               // with failures
	maxProbeDelay = 5 * time.Second
	tryEvery      = time.Second // interval of probes by users without failures
	maxClosedLine = 64          // requests of a class that may wait at a closed gate
	probeClaims   = 64          // users that a look returns for one probe
	maxNewProbes  = 3           // requests that wait as probes before others are left to looks
	rampFirst     = 64          // requests in the first second after an outage; doubles each second
	rampSeconds   = 6
	blockedLasts  = time.Hour
)

// class is the class of a request at a gate. The classes go in this order, and the later
// ones get only a part of the places, so that users whose requests hang delay no others.
type class int

const (
	classKnown   class = iota // the gate has answered the user; the only request
	classUnknown              // the gate has not answered the user yet; one request of each user
	classFurther              // the gate has answered the user, who has others in flight there
	classFailing              // the user's last request hangs; one request of each user
	classes
)

type gate struct {
	gateway string
	young   [classes]int     // requests in flight that have a place: they are neither late nor hang
	placed  []*Turn          // these requests, oldest first
	late    int              // requests in flight that are late, but do not hang
	turns   int              // all requests in flight
	lines   [classes][]*Turn // oldest first
	isSlow  bool             // no request was answered yet, or since one hung, or answers are slow
	usedAt  time.Time
	answers answers

	limit       int           // of young
	failingMore int           // places for classFailing beyond a quarter
	mean        time.Duration // of the answers, with more weight on the last ones
	busy        time.Duration // sum of the durations of the answers since settledAt
	settledAt   time.Time
	cutAt       time.Time // when the limit was halved last

	isUnreached bool      // by the last request that failed or was answered
	answered    time.Time // the last success
	failedAt    time.Time // the first failure after the last success
	newlyFailed int       // users who have begun to fail since the last success

	closedAt    time.Time // zero if it is open
	openedAt    time.Time // after the last closure, zero for none
	isBlocked   bool
	failures    int                // of probes
	tryAt       time.Time          // the next probe, by a user without failures
	probeAt     time.Time          // the next probe, by any user
	noLookUntil time.Time          // the last look found no user for a probe
	chosenAt    [classes]time.Time // when MayProbe chose a user
	ramp        int                // requests in the second that began at rampAt
	rampAt      time.Time
}

func (g *gate) isClosed() bool { return !g.closedAt.IsZero() }

// inFlight returns how many requests have a place.
func (g *gate) inFlight() int { return len(g.placed) }

func (g *gate) waiting() (n int) {
	for _, line := range g.lines {
		n += len(line)
	}
	return n
}

// patience is how long a request keeps its place from others.
func (g *gate) patience() time.Duration {
	switch {
	case g.isClosed():
		return hangAfter
	case g.answered.IsZero():
		return newPatience
	}
	return min(max(leastPatience, lateFactor*g.mean), hangAfter)
}

// hasPlace reports whether a gate has a place for one more request.
func (g *gate) hasPlace(c class, now time.Time) bool {
	if g.isClosed() {
		return g.isProbeDue(c, now)
	}
	if now.Sub(g.rampAt) >= time.Second {
		g.rampAt, g.ramp = now, 0
	}
	isFull := g.inFlight() >= g.limit ||
		c != classKnown && g.inFlight()-g.young[classKnown] >= max(1, g.limit*3/4) ||
		c == classFailing && g.young[classFailing] >= g.failingPlaces()
	return !isFull && g.ramp < g.rampLimit(now)
}

// failingPlaces returns how many places are for users whose last request hangs: a
// quarter, and after an outage one more for each of their requests that is answered.
func (g *gate) failingPlaces() int { return max(1, min(g.limit/4+g.failingMore, g.limit*3/4)) }

// rampLimit returns how many requests may begin in this second.
func (g *gate) rampLimit(now time.Time) int {
	seconds := now.Sub(g.openedAt) / time.Second
	if seconds >= rampSeconds {
		return math.MaxInt32
	}
	return rampFirst << seconds
}

// begin notes the begin of a request, which is a probe if the gate is closed.
func (g *gate) begin(c class, now time.Time) {
	g.young[c]++
	if !g.isClosed() {
		g.ramp++
		return
	}
	g.tryAt, g.probeAt = now.Add(tryEvery), now.Add(maxProbeDelay) // the next probes, if this one hangs
}

// takes notes an accepted request, which opens the gate and raises its limit by one: so the
// limit can double in a round trip. The limit is at most newGate more than twice the mean
// number of requests in flight, which follows from Little's law: the answers in a second,
// times the seconds of an answer.
func (g *gate) takes(now time.Time, took time.Duration, most int) {
	g.open(now)
	if g.answered.IsZero() {
		g.mean = took
	}
	g.mean += (took - g.mean) / 8
	g.answered, g.newlyFailed, g.failedAt = now, 0, time.Time{}
	g.busy += took
	g.limit++
	if passed := now.Sub(g.settledAt); passed >= settle {
		inFlight := int(math.Ceil(g.busy.Seconds() / passed.Seconds()))
		g.limit = min(g.limit, 2*inFlight+newGate)
		g.busy, g.settledAt = 0, now
	}
	g.limit = min(g.limit, most)
}

// fails notes that a user's request has failed, or hangs. One user may invent many pushers
// that fail, so only several users lower the limit. A user who has failed since before the last
// success does so for a reason of its own, which is not the gate's.
func (g *gate) fails(now time.Time, user uint64) {
	a := g.answers.at(now)
	if !a.failed.has(user) && !a.failing.has(user) {
		g.newlyFailed++
	}
	if a.failed.add(user); g.newlyFailed > 0 && g.failedAt.IsZero() {
		g.failedAt = now
	}
	if g.newlyFailed < closeUsers || now.Sub(g.cutAt) < settle {
		return
	}
	least := minGate
	if now.Sub(g.answered) <= closeAfter {
		least = busyGate
	}
	g.cutAt, g.limit = now, max(min(g.limit, least), g.limit/2)
}

// closeIfSilent closes a gate that fails for several users, and has accepted nothing for a
// while.
func (g *gate) closeIfSilent(now time.Time) {
	idleSince := g.failedAt
	if g.answered.After(idleSince) {
		idleSince = g.answered
	}
	if !g.isClosed() && g.newlyFailed >= closeUsers && now.Sub(idleSince) > closeAfter {
		g.close(now, time.Second)
	}
}

// block closes a gate to which this host may not connect.
func (g *gate) block(now time.Time) {
	g.close(now, blockedLasts)
	g.isBlocked = true
}

func (g *gate) close(now time.Time, probeIn time.Duration) {
	if !g.isClosed() {
		g.closedAt, g.failures = now, 0
	}
	g.probeAt = now.Add(probeIn)
}

func (g *gate) open(now time.Time) {
	if !g.isClosed() {
		return
	}
	g.closedAt, g.openedAt, g.isBlocked = time.Time{}, now, false
}

// downAfter is the time without a success after which a closed gate is down.
const downAfter = time.Minute

func (g *gate) isDown(now time.Time) bool { return g == nil || now.Sub(g.answered) > downAfter }

// isProbeDue reports whether a closed gate should be probed. Users whose requests hang or
// fail probe it only if there are no others.
func (g *gate) isProbeDue(c class, now time.Time) bool {
	if c == classFailing || g.isBlocked {
		return !now.Before(g.probeAt)
	}
	return !now.Before(g.tryAt)
}

// mayWaitForProbe reports whether a request may wait at a closed gate: as its next probe, or
// because the next probe may open the gate.
func (g *gate) mayWaitForProbe(c class, now time.Time) bool {
	return g.isProbeDue(c, now) || c != classFailing && !g.isBlocked && len(g.lines[c]) < maxClosedLine
}

// probes returns how many users a look may return for the next probe of a closed gate, and
// how many of them may be users that fail.
func (g *gate) probes(now time.Time) (most, failing int) {
	switch {
	case now.Before(g.noLookUntil) || !g.isProbeDue(classUnknown, now):
		return 0, 0
	case g.isProbeDue(classFailing, now):
		return probeClaims, 1
	}
	return probeClaims, 0
}

func (g *gate) endProbe(now time.Time, r Result) {
	switch r {
	case Unused: // the next request becomes the probe
		g.tryAt, g.probeAt = now, now
	case Answered, Failed, Unreached:
		g.failures++
		fallthrough
	default:
		g.probeAt = now.Add(min(time.Second<<min(g.failures, 8), maxProbeDelay))
	}
}

// A host is cut off if it lately failed to reach unreachedGates gates, in requests of
// closeUsers users, and no gate has answered since. If any gate has ever answered this host, gates
// count that have: names of gates that refuse connections are free.
const (
	unreachedGates = 3
	unreachedLasts = 3 * closeAfter // how long a failure counts
	maxUnreached   = 1000           // failures that are known, of as many gates
)

// unreachable is the last failure to reach a gate.
type unreachable struct {
	at   time.Time
	user string
}

func (s *Scheduler) addAnswer(now time.Time, t *Turn) {
	t.gate.isUnreached, s.answeredAt = false, now
	s.answered.add(s.hash(t.Gate))
}

func (s *Scheduler) addUnreached(now time.Time, t *Turn) {
	t.gate.isUnreached = true
	if !s.answeredAt.IsZero() && !s.answered.has(s.hash(t.Gate)) {
		return
	}
	for name := range s.unreached { // at random
		if len(s.unreached) < maxUnreached {
			break
		}
		delete(s.unreached, name)
	}
	s.unreached[t.Gate] = unreachable{now, t.User}
}

// IsCutOff reports whether this host leaves the work to others, because it reaches no
// gateway.
func (s *Scheduler) IsCutOff(now time.Time) bool {
	if now.Sub(s.answeredAt) <= closeAfter {
		return false
	}
	gates, users := 0, map[string]bool{}
	for gate, u := range s.unreached {
		if !s.isUnreached(now, gate) {
			continue
		}
		gates++
		users[u.user] = true
		if gates >= unreachedGates && len(users) >= closeUsers {
			return true
		}
	}
	return false
}

func (s *Scheduler) isUnreached(now time.Time, gate string) bool {
	u, found := s.unreached[gate]
	return found && u.at.After(s.answeredAt) && now.Sub(u.at) < unreachedLasts
}

// MayReach reports whether this host should try a gate. A host that is cut off tries
// gates without recent failures: otherwise a few gateways that refuse connections would
// delay all others.
func (s *Scheduler) MayReach(now time.Time, gate string) bool {
	return !s.IsCutOff(now) || !s.isUnreached(now, gate)
}
