package delivery

import (
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/mxid"
)

// gates gives the requests of a host their turns. It is safe for concurrent use.
type gates struct {
	wake chan struct{} // ends the wait for the next look

	mu          sync.Mutex
	turns       *turns.Scheduler
	hasMore     bool      // the last look left due users
	putOffUntil time.Time // then all pushers that were put off are due again
	isTicking   bool      // while requests wait for their places
}

func newGates(cfg turns.Config) *gates {
	return &gates{wake: make(chan struct{}, 1), turns: turns.New(cfg)}
}

// admit is [turns.Scheduler.Admit].
func (g *gates) admit(user mxid.UserID, gate string, try turns.Try) (*turns.Turn, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	turn, delay := g.turns.Admit(now, string(user), gate, try)
	if due := now.Add(delay); turn == nil && delay < lookEvery/2 && due.After(g.putOffUntil) {
		g.putOffUntil = due
	}
	if turn != nil && turn.Ready != nil && !g.isTicking {
		g.isTicking = true
		time.AfterFunc(tickEvery, g.tick)
	}
	return turn, delay
}

// tickEvery is the interval of [turns.Scheduler.Tick].
const tickEvery = 50 * time.Millisecond

func (g *gates) tick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turns.Tick(time.Now())
	if g.isTicking = g.turns.Waiting() > 0; g.isTicking {
		time.AfterFunc(tickEvery, g.tick)
	}
}

// lowLine is the number of waiting requests of a gate below which a host looks for more.
const lowLine = 64

// end ends a turn, and starts a look if more users are due, or the gate is open again.
func (g *gates) end(t *turns.Turn, r turns.Result) {
	g.mu.Lock()
	wasOpen := g.turns.IsOpen(t.Gate)
	g.turns.End(time.Now(), t, r)
	hasMore := g.hasMore && g.turns.WaitingAt(t.Gate) < lowLine || !wasOpen && g.turns.IsOpen(t.Gate)
	g.mu.Unlock()
	if hasMore {
		g.lookNow()
	}
}

// lookNow starts a look.
func (g *gates) lookNow() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// putOff returns how long to put off a request that has waited for its turn in vain.
func (g *gates) putOff(t *turns.Turn) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.PutOff(t)
}

// mayProbe is [turns.Scheduler.MayProbe].
func (g *gates) mayProbe(u module.DueUser) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.MayProbe(time.Now(), string(u.User), u.Gate, u.Fails)
}

// hangs is [turns.Scheduler.Hangs].
func (g *gates) hangs(t *turns.Turn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.Hangs(time.Now(), t)
}

// reject is [turns.Scheduler.Reject].
func (g *gates) reject(t *turns.Turn) (stopped, isNew bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.Reject(time.Now(), t)
}

func (g *gates) isOpen(gate string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.IsOpen(gate)
}

// state is [turns.Scheduler.IsWell] and [turns.Scheduler.IsCutOff].
func (g *gates) state(gate string, last time.Duration) (isWell, isCutOff bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	return g.turns.IsWell(now, gate, last), g.turns.IsCutOff(now)
}

// isGone reports whether an answer removes its pusher: at once, or because all answers for
// [channel.Answer.GoneAfter] were the same, while the gate took what others got.
func (g *gates) isGone(gate string, a channel.Answer, before trouble, now time.Time) bool {
	if a.GoneAfter == 0 || before.Same == 0 || before.Status != a.Status {
		return a.Outcome == module.Gone
	}
	failedFor := now.Sub(time.UnixMilli(before.Same))
	g.mu.Lock()
	defer g.mu.Unlock()
	return a.Outcome == module.Gone || failedFor >= a.GoneAfter && g.turns.HasTaken(time.Now(), gate, failedFor)
}

// wasClosed is [turns.Scheduler.WasClosed], for the last time until now.
func (g *gates) wasClosed(gate string, last time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.WasClosed(time.Now().Add(-last), gate)
}

// room is [turns.Scheduler.Room].
func (g *gates) room(user mxid.UserID) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.Room(string(user))
}

// mayClaim is [turns.Scheduler.MayClaim].
func (g *gates) mayClaim(user mxid.UserID, gate string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.MayClaim(time.Now(), string(user), gate)
}

// capacity returns how many users to claim for.
func (g *gates) capacity() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.Capacity(time.Now())
}

// claimable is [turns.Scheduler.Claimable].
func (g *gates) claimable(gate string) module.GateLimit {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.turns.Claimable(time.Now(), gate)
	return module.GateLimit{Most: l.Most, Failing: l.Failing, IsClosed: l.IsDown, IsLast: l.IsUnreached}
}

// looked notes the result of a look, and how many users of each gate it could return. An open
// gate may have more due users if the look has returned so many.
func (g *gates) looked(found module.Looked, allowed map[string]module.GateLimit) (isCutOff bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hasMore = found.More
	for _, u := range found.Users {
		left := allowed[u.Gate]
		left.Most--
		if u.Fails {
			left.Failing--
		}
		allowed[u.Gate] = left
		if (left.Most == 0 || u.Fails && left.Failing == 0) && g.turns.IsOpen(u.Gate) {
			g.hasMore = true
		}
	}
	return g.turns.IsCutOff(time.Now())
}

// expectMore makes the end of the next turn start a look.
func (g *gates) expectMore() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hasMore = true
}

// hasPutOff reports whether pushers that were put off are soon due again.
func (g *gates) hasPutOff() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().Before(g.putOffUntil)
}

func (g *gates) stats() (s turns.Stats, isCutOff bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns.Stats(), g.turns.IsCutOff(time.Now())
}
