package turns

import (
	"math"
	"time"
)

// The places of a gate.
const (
	newGate = 32 // before its first answer
	minGate = 2  // while it fails
	settle  = time.Second
)

// When gates close and open.
const (
	closeAfter    = 5 * time.Second // without a success
	closeUsers    = 3               // with failures
	maxProbeDelay = 5 * time.Second
	tryEvery      = time.Second // interval of probes by users without failures
	maxClosedLine = 64          // requests that may wait at a closed gate
	probeClaims   = 4           // backlogs that a host claims for one probe
	rampFirst     = 64          // requests in the first second after an outage; doubles each second
	rampSeconds   = 6
	blockedLasts  = time.Hour
)

// class is the class of a request at a gate. Known users go first, and the other classes
// get only a part of the places, so that users whose requests hang delay no others.
type class int

const (
	known   class = iota // the gate has answered the user
	unknown              // the gate has not answered the user yet; one request of each user
	hangs                // a request of the user hung at the gate, and none was answered since
	classes
)

type gate struct {
	young     [classes]int     // requests in flight that do not hang
	lines     [classes][]*Turn // oldest first
	isStarved bool             // it waits for a place of the host
	isSilent  bool             // no request was answered yet, or since one hung
	usedAt    time.Time
	answers   answers

	limit     int           // of young
	busy      time.Duration // sum of the durations of the answers since settledAt
	settledAt time.Time
	cutAt     time.Time // when the limit was halved last

	answered time.Time // the last success
	failedAt time.Time // the first failure after the last success
	failing  users     // users with failures since the last success

	closedAt  time.Time // zero if it is open
	isBlocked bool
	probes    int
	probeAt   time.Time
	triedAt   time.Time // the last probe by a user without failures
	opened    time.Time
	wasClosed time.Time // start of the last closure, which ended at opened
	ramp      int       // requests in the second that began at rampAt
	rampAt    time.Time
}

// users is a bounded set of users. When it is full, has returns true for every user.
type users map[uint64]struct{}

const maxFailing = 1000

func (u users) has(user uint64) bool {
	_, found := u[user]
	return found || len(u) >= maxFailing
}

func (g *gate) inFlight() int { return g.young[known] + g.young[unknown] + g.young[hangs] }

func (g *gate) waiting() int {
	return len(g.lines[known]) + len(g.lines[unknown]) + len(g.lines[hangs])
}

// hasPlace reports whether a gate has a place for one more request.
func (g *gate) hasPlace(c class, now time.Time) bool {
	if !g.closedAt.IsZero() {
		return false
	}
	if now.Sub(g.rampAt) >= time.Second {
		g.rampAt, g.ramp = now, 0
	}
	isFull := g.inFlight() >= g.limit ||
		c != known && g.young[unknown]+g.young[hangs] >= max(1, g.limit*3/4) ||
		c == hangs && g.young[hangs] >= max(1, g.limit/4)
	return !isFull && g.ramp < g.rampLimit(now)
}

// rampLimit returns how many requests may begin in this second.
func (g *gate) rampLimit(now time.Time) int {
	seconds := int(now.Sub(g.opened) / time.Second)
	if g.opened.IsZero() || seconds >= rampSeconds {
		return math.MaxInt32
	}
	return rampFirst << seconds
}

// takes notes an accepted request, which opens the gate and raises its limit by one: so the
// limit can double in a round trip. The limit is at most newGate more than twice the mean
// number of requests in flight, which follows from Little's law: the answers in a second,
// times the seconds of an answer.
func (g *gate) takes(now time.Time, took time.Duration, most int) {
	if !g.closedAt.IsZero() {
		g.wasClosed, g.opened = g.closedAt, now
	}
	g.answered, g.failing, g.failedAt = now, nil, time.Time{}
	g.closedAt, g.isBlocked, g.probes = time.Time{}, false, 0
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
// that fail, so only several users lower the limit.
func (g *gate) fails(now time.Time, user uint64) {
	if g.failedAt.IsZero() {
		g.failedAt = now
	}
	if g.failing == nil {
		g.failing = users{}
	}
	if len(g.failing) < maxFailing {
		g.failing[user] = struct{}{}
	}
	if len(g.failing) >= closeUsers && now.Sub(g.cutAt) >= settle {
		g.cutAt, g.limit = now, max(minGate, g.limit/2)
	}
}

// closeIfSilent closes a gate that fails for several users, and has accepted nothing for a
// while.
func (g *gate) closeIfSilent(now time.Time) {
	idleSince := g.failedAt
	if g.answered.After(idleSince) {
		idleSince = g.answered
	}
	if g.closedAt.IsZero() && len(g.failing) >= closeUsers && now.Sub(idleSince) > closeAfter {
		g.close(now, time.Second)
	}
}

// throttle closes a gate that fails for several users. The gate is probed after
// maxProbeDelay at the latest: only the pusher waits as long as the gateway asks.
func (g *gate) throttle(now time.Time, user uint64, wait time.Duration) {
	g.fails(now, user)
	if len(g.failing) >= closeUsers && g.closedAt.IsZero() {
		g.close(now, min(wait, maxProbeDelay))
	}
}

// closedFor returns for how long a gate has been closed since a time. It counts the last
// closure only.
func (g *gate) closedFor(now, since time.Time) time.Duration {
	from, to := g.wasClosed, g.opened
	if !g.closedAt.IsZero() {
		from, to = g.closedAt, now
	}
	if from.Before(since) {
		from = since
	}
	return max(0, to.Sub(from))
}

func (g *gate) close(now time.Time, probeIn time.Duration) {
	if g.closedAt.IsZero() {
		g.closedAt, g.probes = now, 0
	}
	g.probeAt = now.Add(probeIn)
}

func (g *gate) beginProbe(now time.Time) {
	g.probeAt = now.Add(maxProbeDelay) // the next probe, if this one hangs
}

func (g *gate) endProbe(now time.Time, r Result) {
	switch r {
	case Unused: // the next request becomes the probe
		g.probeAt = now
	case Failed, Unreached, Throttled:
		g.probes++
		fallthrough
	default:
		g.probeAt = now.Add(min(time.Second<<min(g.probes, 8), maxProbeDelay))
	}
}

// A host is cut off if it lately failed to reach unreachedGates gates, in requests of
// closeUsers users, and no gate has accepted a request.
const (
	unreachedGates = 3
	unreachedLasts = 3 * closeAfter // how long a failure counts
)

// unreachable is the last failure to reach a gate.
type unreachable struct {
	at   time.Time
	user string
}

// IsCutOff reports whether this host leaves the work to others, because it reaches no
// gateway.
func (s *Scheduler) IsCutOff(now time.Time) bool {
	if now.Sub(s.tookAny) <= closeAfter {
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
	return found && u.at.After(s.tookAny) && now.Sub(u.at) < unreachedLasts
}

// MayReach reports whether this host should try a gate. A host that is cut off tries
// gates without recent failures: otherwise a few gateways that refuse connections would
// delay all others.
func (s *Scheduler) MayReach(now time.Time, gate string) bool {
	return !s.IsCutOff(now) || !s.isUnreached(now, gate)
}
