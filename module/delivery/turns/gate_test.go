package turns

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// A freed place of the host goes to a user with nothing in flight, at a gateway within its share.
func TestAFreedPlaceGoesToAStarvedGate(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxInFlight = 8
	var inFlight, waits []*Turn
	for n := range 8 {
		inFlight = append(inFlight, w.must(fmt.Sprint("u", n), "https://a x"))
	}
	for _, r := range [][2]string{{"new", "https://a x"}, {"u0", "https://b x"}, {"new too", "https://a y"}, {"another", "https://b y"}} {
		turn, _ := w.Admit(w.now, r[0], r[1], FirstTry)
		waits = append(waits, turn)
	}
	for n, next := range []int{3, 0, 2, -1, -1, -1, -1, 1} {
		w.end(inFlight[7-n], Neutral)
		for at, turn := range waits {
			if turn != nil && hasPlace(turn) != (at == next) {
				t.Fatalf("place %d: request %d has one: %v", n, at, hasPlace(turn))
			}
		}
		if next >= 0 {
			waits[next] = nil
		}
	}
	for _, gate := range []string{"q", "q2", "q3"} {
		w.end(w.must("u", gate), Taken)
	}
	for n := range 4 {
		inFlight[n] = w.must(fmt.Sprint("u", n), "q")
	}
	second, _ := w.Admit(w.now, "u0", "q2", FirstTry)
	first, _ := w.Admit(w.now, "first", "q3", FirstTry)
	if w.end(inFlight[3], Taken); hasPlace(second) || !hasPlace(first) {
		t.Error("a user with a request in flight goes before one without")
	}
}

// Users that fail as far as other hosts know have a quarter of the places, until they are answered.
func TestUsersThatFailGoLast(t *testing.T) {
	w := newWorld(t)
	claimable := func(want int) {
		t.Helper()
		if failing := w.Claimable(w.now, "g").Failing; failing != want {
			t.Errorf("a look returns %d users that fail, want %d", failing, want)
		}
	}
	claimable(newGate / 4)
	begin := func(want int) (begun []*Turn) {
		t.Helper()
		for n := range 40 {
			if turn, _ := w.Admit(w.now, fmt.Sprint("fails", w.Scheduler.admitted, n), "g", RetryOfFailing); hasPlace(turn) {
				begun = append(begun, turn)
			} else {
				w.end(turn, Unused)
			}
		}
		if len(begun) != want {
			t.Errorf("%d begin, want %d", len(begun), want)
		}
		return begun
	}
	one, _ := w.Admit(w.now, "fails", "g", RetryOfFailing)
	two, _ := w.Admit(w.now, "fails", "g", FirstTry)
	if hasPlace(two) {
		t.Error("a user that fails has two requests at once")
	}
	w.end(one, Unused)
	w.end(two, Unused)
	begun := begin(newGate / 4)
	claimable(0)
	unknown := w.must("unknown", "g")
	if turn, _ := w.Admit(w.now, "unknown", "g", FirstTry); hasPlace(turn) {
		t.Error("an unknown user has two requests at once")
	}
	w.end(unknown, Unused)
	for _, turn := range begun {
		w.end(turn, Taken)
	}
	begin(17) // after an outage
	w.pass(hangAfter)
	begin(9)
	w.pass(hangAfter)
	w.Tick(w.now)
	if g := w.gates["g"]; g.limit != 39 || g.newlyFailed > 0 {
		t.Errorf("hangs of users that fail count: %d places, %d users", g.limit, g.newlyFailed)
	}
	w.must("hangs", "g")
	w.pass(hangAfter)
	w.end(w.must("hangs", "g"), Taken)
	if turn := w.must("hangs", "g"); turn.class != classFailing {
		t.Error("a user with a request that hangs does not go last")
	}
}

func TestHangsDoNotStarveAGate(t *testing.T) {
	for every, least := range map[time.Duration]int{time.Second: newGate, 4 * time.Second: busyGate} {
		w := newWorld(t)
		for n := range 60 {
			w.end(w.must("well", "g"), Taken)
			w.pass(time.Millisecond)
			for user := range 10 {
				w.admit(fmt.Sprint("hangs", n, user), "g")
			}
			for range every / time.Second {
				w.pass(time.Second)
				w.Tick(w.now)
			}
		}
		if got := w.gates["g"].limit; got < least || !w.IsOpen("g") {
			t.Errorf("with an answer every %v: %d places, the gate is open: %v", every, got, w.IsOpen("g"))
		}
	}
}

func TestAGateIsSlowByItsMeanAnswer(t *testing.T) {
	w := newWorld(t)
	w.prove("g")
	for n := range 10 {
		turn := w.must("u", "g")
		w.pass(1900 * time.Millisecond)
		if w.end(turn, Taken); w.gates["g"].isSlow != (n > 1) {
			t.Errorf("after %d slow answers: slow is %v", n+1, n <= 1)
		}
	}
}

func TestAClosedGateIsLookedForAProbe(t *testing.T) {
	w := newWorld(t)
	w.close("g")
	look := func(most, failing int) {
		t.Helper()
		if l := w.Claimable(w.now, "g"); l.Most != most || l.Failing != failing || !l.IsDown {
			t.Errorf("a look may claim %+v", l)
		}
	}
	w.gates["g"].probeAt = w.now.Add(time.Second)
	look(probeClaims, 0)
	w.pass(time.Second)
	look(probeClaims, 1)
	probe := w.must("u0", "g")
	look(0, 0)
	w.pass(tryEvery)
	look(probeClaims, 0)
	if turn, delay := w.Admit(w.now, "u1", "g", FirstTry); turn != nil || delay != 0 {
		t.Errorf("lost the race for the probe, got %v, %v", turn, delay)
	}
	w.pass(maxProbeDelay - tryEvery)
	look(probeClaims, 1)
	w.end(probe, Failed)
	w.must("well", "g")
	var turn *Turn
	for n := range maxClosedLine {
		turn, _ = w.Admit(w.now, fmt.Sprint("new", n), "g", FirstTry)
	}
	if w.PutOff(turn) != 0 {
		t.Error("a request in the line of a closed gate does not keep its time")
	}
	if turn, delay := w.Admit(w.now, "one more", "g", FirstTry); turn != nil || delay != 0 {
		t.Errorf("the line of a closed gate is full, got %v, %v", turn, delay)
	}
	g := w.gates["g"]
	w.end(w.users["well"].young[0], Taken)
	g.limit = 256
	w.admitted("g")
	if !w.IsOpen("g") || g.ramp != rampFirst {
		t.Errorf("after an outage, %d begin at once", g.ramp)
	}
	if most := w.claimable("g"); most != 2*rampFirst {
		t.Errorf("a look returns %d", most)
	}
}

// A look returns many users of a closed gate. One whom the gate has answered is the next probe; a user who fails is one
// later. The others have to wait.
func TestOneUserOfEachClassProbesAClosedGate(t *testing.T) {
	w := newWorld(t)
	w.prove("g")
	const known = "p0"
	w.close("g")
	g := w.gates["g"]
	w.pass(tryEvery)
	g.probeAt = w.now.Add(maxProbeDelay)
	chosen := func() (users []string) {
		for _, user := range []string{"u0", "u1", "new", "newer", known, "newest"} {
			if w.MayProbe(w.now, user, "g", false) {
				users = append(users, user)
			}
		}
		return users
	}
	for n, want := range []string{fmt.Sprint("[new ", known, "]"), "[]", fmt.Sprint("[new ", known, "]"), fmt.Sprint("[u0 new ", known, "]")} {
		if got := fmt.Sprint(chosen()); got != want {
			t.Errorf("look %d: %s, want %s", n, got, want)
		}
		switch n {
		case 1:
			w.pass(tryEvery)
		case 2:
			w.pass(maxProbeDelay)
		}
	}
	if m := w.claimable("g"); m != 0 {
		t.Errorf("a look returns %d, although there is nobody for a probe", m)
	}
}

// At a closed gate a host claims for a few users who have not failed there. Each is a probe, one in a second.
func TestNewUsersProbeAClosedGate(t *testing.T) {
	w := newWorld(t)
	w.prove("g")
	w.close("g")
	g := w.gates["g"]
	w.pass(tryEvery)
	g.probeAt = w.now.Add(time.Hour)
	for user, want := range map[string]bool{"u0": false, "p0": true, "new": true} {
		if w.MayClaim(w.now, user, "g") != want {
			t.Errorf("%s: may be claimed: %t", user, !want)
		}
	}
	w.must("first", "g")
	var turns []*Turn
	for n := range maxNewProbes {
		if !w.MayClaim(w.now, "new", "g") {
			t.Fatalf("not claimed beside %d others", n)
		}
		turn, _ := w.Admit(w.now, fmt.Sprint("new", n), "g", FirstTry)
		turns = append(turns, turn)
	}
	if w.MayClaim(w.now, "new", "g") {
		t.Errorf("claimed beside %d others", maxNewProbes)
	}
	for n := range maxNewProbes {
		w.pass(tryEvery)
		w.Tick(w.now)
		for at, turn := range turns {
			if hasPlace(turn) != (at <= n) {
				t.Errorf("after %d s, request %d has a place: %t", n+1, at, at > n)
			}
		}
	}
	g.block(w.now)
	if w.MayClaim(w.now, "new", "g") {
		t.Error("claimed at a gate to which this host may not connect")
	}
}

func TestRefusedRequestsArePutOffForLonger(t *testing.T) {
	w := newWorld(t)
	refused := func(users int) (last time.Duration) {
		for n := range 10_000 {
			if turn, delay := w.Admit(w.now, fmt.Sprint("u", n%users), "g", FirstTry); turn == nil {
				last = delay
			}
		}
		return last
	}
	if got := refused(1); got < 10*time.Second {
		t.Errorf("a user is put off for %v", got)
	}
	if got := refused(10_000); got < 500*time.Millisecond {
		t.Errorf("many users are put off for %v", got)
	}
}

// Names of gates are free: a user makes half a million of them.
func makeGates(s *Scheduler, now time.Time, gates int) {
	for n := range gates {
		turn, _ := s.Admit(now, fmt.Sprint("user", n%100), fmt.Sprint("https://gw", n, " app"), FirstTry)
		s.End(now, turn, []Result{Taken, Failed, Unreached}[n%3])
	}
}

func TestGatesAreForgotten(t *testing.T) {
	w := newWorld(t)
	rejects, hangs := w.must("u", "rejects"), w.must("u", "hangs")
	w.Reject(w.now, rejects)
	w.end(rejects, Taken)
	w.close("closed")
	makeGates(w.Scheduler, w.now, 10_000)
	if len(w.unreached) > maxUnreached {
		t.Errorf("%d failures are known", len(w.unreached))
	}
	kept := func(after time.Duration, want ...string) {
		t.Helper()
		w.pass(after)
		w.Capacity(w.now)
		if got := slices.Sorted(maps.Keys(w.gates)); !slices.Equal(got, want) {
			t.Errorf("kept %d gates: %.100q, want %q", len(got), got, want)
		}
	}
	kept(2*time.Minute, "closed", "hangs", "rejects")
	w.end(hangs, Failed)
	kept(time.Minute, "closed", "rejects")
	kept(2*rejectWindow, "closed")
	kept(forgetClosedAfter)
}

func BenchmarkTickBesideManyGates(b *testing.B) {
	s := New(Config{MaxInFlight: 2048, MaxPerGate: 256, Random: func() float64 { return 0 }})
	now := time.Unix(1_700_000_000, 0)
	makeGates(s, now, 500_000)
	for n := range 100 {
		s.Admit(now, fmt.Sprint("waits", n), "https://full app", FirstTry)
	}
	for b.Loop() {
		s.Tick(now)
	}
}

// Requests that take much longer than the gate's answers leave their places to others, a user's further ones last.
func TestLateRequestsLeaveTheirPlaces(t *testing.T) {
	for name, test := range map[string]struct {
		took     time.Duration // of the gate's answers, 0 for none
		patience time.Duration
	}{
		"a quick gate": {time.Millisecond, leastPatience}, "a gate": {200 * time.Millisecond, 800 * time.Millisecond},
		"a slow gate": {time.Second, hangAfter}, "a new gate": {0, newPatience},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for n := range 20 {
				if test.took > 0 {
					turn := w.must(fmt.Sprint("known", n), "g")
					w.pass(test.took)
					w.end(turn, Taken)
				}
			}
			for turn, _ := w.admit("silent", "g"); turn != nil; turn, _ = w.admit(fmt.Sprint("silent", w.Scheduler.admitted), "g") {
			}
			last, _ := w.Admit(w.now, "last", "g", FirstTry)
			w.pass(test.patience - time.Millisecond)
			if w.Tick(w.now); hasPlace(last) {
				t.Errorf("a request has a place before %v", test.patience)
			}
			w.pass(time.Millisecond)
			if w.Tick(w.now); !hasPlace(last) {
				t.Errorf("a request has no place after %v", test.patience)
			}
		})
	}
}

func TestFurtherRequestsOfAUserGoAfterOthers(t *testing.T) {
	w := newWorld(t)
	w.end(w.must("known", "g"), Taken)
	for n := range newPlaces {
		w.must(fmt.Sprint("new", n), "g")
	}
	w.must("known", "g")
	further, _ := w.Admit(w.now, "known", "g", FirstTry)
	another, _ := w.Admit(w.now, "another", "g", FirstTry)
	w.end(w.users["new0"].young[0], Neutral)
	if hasPlace(further) || !hasPlace(another) {
		t.Error("a user's second request goes before another user's first one")
	}
	w.end(w.users["new1"].young[0], Neutral)
	if !hasPlace(further) || further.class != classFurther {
		t.Error("a user's second request has no place")
	}
}

// Who hangs while others are answered is known after two seconds. Nobody is, at a gate that is closed.
func TestAHangIsTheUsersUnlessTheGateIsClosed(t *testing.T) {
	w := newWorld(t)
	w.end(w.must("well", "g"), Taken)
	one := w.must("one", "g")
	w.pass(hangAfter - time.Millisecond)
	if w.Hangs(w.now, one) {
		t.Error("it hangs too early")
	}
	w.pass(time.Millisecond)
	if !w.Hangs(w.now, one) {
		t.Error("it does not hang")
	}
	w.end(one, Failed)
	if turn := w.must("one", "g"); turn.class != classFailing {
		t.Error("a user whose request hung does not go last")
	}
	w.close("closed")
	probe := w.must("probe", "closed")
	w.pass(hangAfter)
	if w.Hangs(w.now, probe) || w.gates["closed"].answers.failing.len() > 0 {
		t.Error("the probe of a closed gate hangs")
	}
	if w.must("u0", "closed"); w.gates["closed"].answers.failed.has(w.hash("u1")) {
		t.Error("users that failed before a probe hung are not probes")
	}
}
