package turns

import "time"

// The rejection limit. It counts users, because one user may invent many pushers with
// pushkeys that are rejected. Each gate has its own count. At the limit, further rejections of a
// user do not count: a few dead pushkeys, which are tried again, keep no other from being removed.
const (
	rejectWindow = 10 * time.Minute
	rejectUsers  = 5 // with rejected pushkeys
	rejectShare  = 5 // more than one of this many users
)

// answers are the users with answers of a gate, in this window and the one before.
type answers struct {
	all, rejected recent
	dead          recent // users with a rejection, here as long as they are rejected again
	failed        recent // users whose last request has failed, or hangs
	failing       recent // users without an answer since a request hung, or failed beside others, here or at another host
	began         time.Time
	isStopped     bool
}

func (a *answers) add(user uint64) {
	a.all.add(user)
	a.failed.remove(user)
	a.failing.remove(user)
}

// at returns the answers at a time, after it has begun a new window if one is due.
func (a *answers) at(now time.Time) *answers {
	passed := now.Sub(a.began)
	if passed < rejectWindow {
		return a
	}
	if passed >= 2*rejectWindow {
		*a = answers{isStopped: a.isStopped}
	}
	a.all.rotate()
	a.rejected.rotate()
	a.dead.rotate()
	a.failed.rotate()
	a.failing.rotate()
	a.began = now
	a.isStopped = a.isStopped && a.areTooMany()
	return a
}

func (a *answers) areTooMany() bool {
	n := a.rejected.len()
	return n >= rejectUsers && n*rejectShare > n+a.all.len()-a.dead.len()
}

// Reject counts a rejected pushkey. Stopped is true at the rejection limit, and IsNew if
// the limit was reached now.
func (s *Scheduler) Reject(now time.Time, t *Turn) (stopped, isNew bool) {
	a, user := t.gate.answers.at(now), s.hash(t.User)
	a.add(user)
	was := a.isStopped
	if !was || !a.dead.has(user) {
		a.rejected.add(user)
	}
	a.dead.add(user)
	a.isStopped = a.areTooMany()
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

func (r *recent) remove(key uint64) {
	delete(r.young, key)
	delete(r.old, key)
}

func (r *recent) has(key uint64) bool {
	_, isYoung := r.young[key]
	_, isOld := r.old[key]
	return isYoung || isOld
}

func (r *recent) rotate() { r.old, r.young = r.young, map[uint64]struct{}{} }

func (r *recent) len() int { return len(r.young) + len(r.old) }
