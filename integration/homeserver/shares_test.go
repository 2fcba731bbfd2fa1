package main

import (
	"fmt"
	"testing"
	"time"
)

// company has alice among the shares, who takes a little from time to time.
func company(s *shares, now time.Time) { s.take("alice", now) }

func TestSharesGiveRequestsBackAsTimeGoesBy(t *testing.T) {
	t.Parallel()
	s, now := newShares(10), time.Now()
	company(s, now)
	for range burst {
		if wait := s.take("mallory", now); wait != 0 {
			t.Fatalf("has to wait %v", wait)
		}
	}
	if wait := s.take("mallory", now); wait != s.interval {
		t.Errorf("has to wait %v, want %v", wait, s.interval)
	}
	if wait := s.take("bob", now); wait != 0 {
		t.Errorf("another has to wait %v", wait)
	}
	for i := range 3 {
		now = now.Add(s.interval)
		if first, second := s.take("mallory", now), s.take("mallory", now); first != 0 || second <= 0 {
			t.Errorf("interval %d: has to wait %v and %v", i, first, second)
		}
	}
}

func TestSharesOutliveTheirGenerations(t *testing.T) {
	t.Parallel()
	s, start := newShares(10), time.Now()
	served := 0
	const seconds = 60
	for at := time.Duration(0); at < seconds*time.Second; at += 7 * time.Millisecond {
		if at%(700*time.Millisecond) == 0 {
			company(s, start.Add(at))
		}
		if s.take("mallory", start.Add(at)) == 0 {
			served++
		}
	}
	if most := burst + 10*seconds; served > most || served < most-1 {
		t.Errorf("%d requests were served, want %d", served, most)
	}
}

func TestSharesBindNobodyWhoIsAlone(t *testing.T) {
	t.Parallel()
	s, now := newShares(10), time.Now()
	company(s, now)
	now = now.Add(3 * (s.span() + maxDebt))
	if !s.alone("mallory", now) {
		t.Error("alice is remembered")
	}
	for range 10 * burst {
		if wait := s.take("mallory", now); wait != 0 {
			t.Fatalf("has to wait %v", wait)
		}
	}
	company(s, now)
	if s.alone("mallory", now) || s.alone("alice", now) || s.alone("bob", now) {
		t.Error("somebody is alone among two")
	}
	if wait := s.take("mallory", now); wait <= 0 || wait > maxDebt+s.interval {
		t.Errorf("has to wait %v once there is another", wait)
	}
}

func TestSharesBindNobodyWhoTakesAsMuchAsOthers(t *testing.T) {
	t.Parallel()
	s, now := newShares(10), time.Now()
	for range 10 * burst {
		for _, user := range []string{"alice", "bob", "bob", "carol"} { // bob takes twice as much
			if wait := s.take(user, now); wait != 0 {
				t.Fatalf("%s has to wait %v", user, wait)
			}
		}
	}
	for range far * 10 * burst * 2 {
		s.take("mallory", now)
	}
	if wait := s.take("mallory", now); wait == 0 {
		t.Error("mallory takes far more and need not wait")
	}
}

func TestManyGreedyUsersAmongMoreAreBound(t *testing.T) {
	t.Parallel()
	s, now := newShares(10), time.Now()
	served := 0
	const users, greedy, seconds = 100, 20, 20
	for at := 0; at < 1000*seconds; at++ {
		now = now.Add(time.Millisecond)
		s.take(fmt.Sprint("user", at%users), now) // ten a second, each
		for i := range 10 {                       // five hundred a second, each
			if s.take(fmt.Sprint("greedy", (10*at+i)%greedy), now) == 0 {
				served++
			}
		}
	}
	if most := 3000 * seconds; served > most {
		t.Errorf("%d requests of %d were served, want at most %d", served, 10_000*seconds, most)
	}
}

func TestSharesForgetThoseWhoWentAway(t *testing.T) {
	t.Parallel()
	s, now := newShares(10), time.Now()
	for i := range 100_000 {
		s.take(fmt.Sprint(i), now)
	}
	for range 2 {
		now = now.Add(s.span() + maxDebt)
		s.take("alice", now)
	}
	if left := len(s.recent.of) + len(s.older.of); left > 2 || s.present > 1 {
		t.Errorf("%d are remembered, %d present", left, s.present)
	}
}

func TestALongRequestCountsAsMany(t *testing.T) {
	t.Parallel()
	const usual = 10 * time.Millisecond
	s := newShares(10)
	for range 10_000 {
		s.charge("bob", usual, 0)
	}
	if took := s.usual; took < usual*9/10 || took > usual {
		t.Errorf("%v is usual, want %v", took, usual)
	}
	for name, test := range map[string]struct {
		took   time.Duration
		answer int64
		want   time.Duration
	}{
		"as long as is usual":         {long * usual, answerBytes - 1, 0},
		"a little longer":             {long*usual + time.Millisecond, 0, costFactor * time.Millisecond},
		"held up":                     {time.Hour, 0, maxLongCost},
		"a long answer":               {usual, 3*answerBytes + 1, 3 * s.interval},
		"both":                        {long*usual + time.Millisecond, answerBytes, costFactor*time.Millisecond + s.interval},
		"an answer of many megabytes": {usual, 1 << 30, s.span() + maxDebt},
	} {
		s := &shares{interval: s.interval, usual: usual, recent: generation{of: map[string]taken{}}}
		s.charge("alice", test.took, test.answer)
		now := time.Now()
		if back := s.back("alice", now).Sub(now); back > test.want || back < test.want/2 {
			t.Errorf("%s: all is back after %v, want %v", name, back, test.want)
		}
	}
}
