package turns

import (
	"hash/maphash"
	"time"
)

// The rejection limit. It counts users, because one user may invent many pushers with
// pushkeys that are rejected. It belongs to the gate, and is forgotten with it.
const (
	rejectWindow = 10 * time.Minute
	rejectUsers  = 5 // with rejected pushkeys
	rejectShare  = 5 // more than one of this many users
)

// answers are the users with answers of a gate, in this window and the one before.
type answers struct {
	taken, rejected recent
	began           time.Time
	isStopped       bool
}

// Answered counts an answer for a user. Stopped is true at the rejection limit, and
// IsNew if the limit was reached now.
func (s *Scheduler) Answered(now time.Time, t *Turn, isRejected bool) (stopped, isNew bool) {
	a, user := &t.gate.answers, maphash.String(s.seed, t.User)
	isLater := now.Sub(a.began) >= rejectWindow
	if isLater {
		if now.Sub(a.began) >= 2*rejectWindow {
			*a = answers{isStopped: a.isStopped}
		}
		a.taken.rotate()
		a.rejected.rotate()
		a.began = now
	}
	if isRejected {
		a.rejected.add(user)
	} else {
		a.taken.add(user)
	}
	was := a.isStopped
	if isRejected || isLater {
		a.isStopped = a.rejected.len() >= rejectUsers && a.rejected.len()*rejectShare > a.taken.len()+a.rejected.len()
	}
	return a.isStopped, a.isStopped && !was
}

const recentSize = 50_000 // of a generation

// recent is a bounded set of two generations: rotate drops the older one.
type recent struct{ young, old map[uint64]struct{} }

func (r *recent) add(key uint64) {
	if _, found := r.young[key]; found {
		return
	}
	if r.young == nil || len(r.young) >= recentSize {
		r.rotate()
	}
	delete(r.old, key)
	r.young[key] = struct{}{}
}

func (r *recent) rotate() { r.old, r.young = r.young, map[uint64]struct{}{} }

func (r *recent) len() int { return len(r.young) + len(r.old) }
