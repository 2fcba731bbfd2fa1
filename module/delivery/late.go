package delivery

import (
	"fmt"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/observe"
)

// lateAfter is the age of a notification above which its delivery is late.
const lateAfter = 10 * time.Second

// LateCause is why a notification was delivered late.
type LateCause string

// The causes.
const (
	LateThrottled LateCause = "throttled" // the gateway answered 429, 507 or another 4xx
	LateFailed    LateCause = "failed"    // the gateway answered otherwise, did not answer, or could not be reached
	LateSlow      LateCause = "slow"      // the gateway took most of the time to accept it
	LateDelayed   LateCause = "delayed"   // module.Attention delayed it
	LateClosed    LateCause = "closed"    // its gateway was closed meanwhile, after failures of other pushers

	// LateWaited is any other cause: a host died or was paused, no
	// host ran, Redis failed, or hosts had no place.
	LateWaited LateCause = "waited"
)

// LateCauses returns all causes.
func LateCauses() []LateCause {
	return []LateCause{LateThrottled, LateFailed, LateSlow, LateDelayed, LateClosed, LateWaited}
}

// LateError describes a late notification. Its text has no pushkey and no user.
type LateError struct {
	Pusher   string // see [PusherID]
	Age      time.Duration
	Cause    LateCause
	Attempts int    // failures before
	Last     string // the last failure: a status, or why there was no answer; empty for none
}

// Error returns the description.
func (e *LateError) Error() string {
	return fmt.Sprintf("%s after %v: %s, %d failures, the last: %q", e.Pusher, e.Age, e.Cause, e.Attempts, e.Last)
}

// pastWait is why the first notification of a pusher waited. Notifications behind it
// waited for the same reason.
type pastWait struct {
	trouble trouble   // of the last failure
	until   time.Time // end of the wait; notifications that were added later did not wait
}

// checkAge reports a delivered notification that is late. Took is the duration of its
// request.
func (s *sending) checkAge(added time.Time, took time.Duration) {
	now := s.d.clock()
	if s.trouble.Attempts > 0 || s.trouble.Delayed != 0 {
		s.wait = pastWait{s.trouble, now}
	}
	age := now.Sub(added)
	if age < lateAfter {
		return
	}
	e := s.lateError(added, age, took)
	s.d.observer.Count(observe.NotificationLate, string(e.Cause), 1)
	if s.d.lateReports.mayAdd() {
		s.d.observer.Report(observe.DeliveredLate, e)
	}
}

// lateError finds out why a notification is late.
func (s *sending) lateError(added time.Time, age, took time.Duration) *LateError {
	var t trouble
	if !added.After(s.wait.until) { // it waited for the same reason
		t = s.wait.trouble
	}
	e := &LateError{Pusher: s.claim.Pusher, Age: age.Round(time.Second), Cause: LateWaited, Attempts: t.Attempts}
	switch {
	case t.Attempts > 0 && t.Class == channel.ClassStatus:
		e.Last, e.Cause = fmt.Sprint(t.Status), LateFailed
		if t.Outcome == module.Busy || t.Outcome == module.Throttled || t.IsOwn {
			e.Cause = LateThrottled
		}
	case t.Attempts > 0:
		e.Last, e.Cause = string(t.Class), LateFailed
	case took > age/2:
		e.Cause = LateSlow
	case t.Delayed != 0:
		e.Cause = LateDelayed
	case s.d.gates.wasClosed(s.target.Gate(), age):
		e.Cause = LateClosed
	}
	return e
}

// maxLateReports is how many late notifications are reported in reportEvery.
const maxLateReports = 10

// lateReports counts the reports of late notifications.
type lateReports struct {
	mu    sync.Mutex
	since time.Time
	n     int
}

// mayAdd reports whether one more may be reported.
func (l *lateReports) mayAdd() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.since) >= reportEvery {
		l.since, l.n = time.Now(), 0
	}
	l.n++
	return l.n <= maxLateReports
}
