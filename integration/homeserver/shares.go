package main

import (
	"sync"
	"time"
)

// The share that a user, or an address without a login, has of the host.
const (
	// burst is how many requests can be made at the full speed of the host; then
	// there is the rate.
	burst = 50

	// far is how many times as much as the others do on average somebody must
	// take to be held to the rate.
	far = 4

	// A request that takes much longer than others do counts as more than one:
	// the time beyond counts this many times, up to a bound, so that one that
	// was held up is not held against its user. So does one with a long answer.
	long        = 8
	leastLong   = time.Millisecond
	costFactor  = 100
	maxLongCost = 400 * time.Millisecond
	answerBytes = 16 << 10 // count as a request

	// maxDebt is how far one can be behind.
	maxDebt = time.Second
)

// shares tells what each key, a user or an address, takes, and holds those to a
// rate who take far more than the others. It forgets who went away.
type shares struct {
	interval time.Duration // in which a key gets a request back; 0 is no bound

	mu            sync.Mutex
	recent, older generation
	present       int           // keys in both
	usual         time.Duration // that requests took, on average over the last few hundred
}

// generation is what was taken in a span of time.
type generation struct {
	began time.Time
	of    map[string]taken
	total time.Duration // taken by all
}

// taken is what a key took.
type taken struct {
	time time.Duration // each request counts an interval at least
	back time.Time     // when the key will have all its requests back
}

func newShares(rate int) *shares {
	s := &shares{recent: generation{of: map[string]taken{}}}
	if rate > 0 {
		s.interval = time.Second / time.Duration(rate)
	}
	return s
}

// alone says whether nobody else made requests of late.
func (s *shares) alone(key string, now time.Time) bool {
	if s.interval == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.age(now)
	return s.others(key) == 0
}

// take takes one of the requests of a key. If it has to wait for it, it returns
// how long.
func (s *shares) take(key string, now time.Time) (wait time.Duration) {
	if s.interval == 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.age(now)
	back := s.back(key, now).Add(s.interval)
	if wait := back.Sub(now) - s.span(); wait > 0 && s.isFarMore(key) {
		return wait
	}
	s.add(key, s.interval, back, now)
	return 0
}

// charge has a request count as more than one that took longer than others, not
// counting what it was to wait for, or has a long answer.
func (s *shares) charge(key string, took time.Duration, answer int64) {
	if s.interval == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cost := min(costFactor*max(0, took-max(leastLong, long*s.usual)), maxLongCost)
	cost += s.interval * time.Duration(answer/answerBytes)
	const memory = 256
	s.usual += (took - s.usual) / memory
	if cost > 0 {
		now := time.Now()
		s.age(now)
		s.add(key, cost, s.back(key, now).Add(cost), now)
	}
}

// span is how long a key that took everything needs to have all back.
func (s *shares) span() time.Duration { return burst * s.interval }

// age begins a new generation where it is time. What is older than two has no
// effect any more.
func (s *shares) age(now time.Time) {
	if now.Sub(s.recent.began) < s.span()+maxDebt {
		return
	}
	s.older, s.recent = s.recent, generation{began: now, of: map[string]taken{}}
	if now.Sub(s.older.began) >= 2*(s.span()+maxDebt) {
		s.older = generation{}
	}
	s.present = len(s.older.of)
}

// back is when a key will have all its requests back.
func (s *shares) back(key string, now time.Time) time.Time {
	back := now
	for _, g := range []*generation{&s.recent, &s.older} {
		if at := g.of[key].back; at.After(back) {
			back = at
		}
	}
	return back
}

// add notes what a key took. What it owes is bounded.
func (s *shares) add(key string, took time.Duration, back, now time.Time) {
	if most := now.Add(s.span() + maxDebt); back.After(most) {
		back = most // or it could be forgotten too soon
	}
	t, known := s.recent.of[key]
	if _, old := s.older.of[key]; !known && !old {
		s.present++
	}
	s.recent.of[key] = taken{t.time + took, back}
	s.recent.total += took
}

// others is how many other keys there were of late.
func (s *shares) others(key string) int {
	_, recent := s.recent.of[key]
	_, older := s.older.of[key]
	if recent || older {
		return s.present - 1
	}
	return s.present
}

// isFarMore says whether a key takes far more than the others do on average.
func (s *shares) isFarMore(key string) bool {
	others := s.others(key)
	if others == 0 {
		return false
	}
	own := s.recent.of[key].time + s.older.of[key].time
	mean := (s.recent.total + s.older.total - own) / time.Duration(others)
	return own > far*mean
}
