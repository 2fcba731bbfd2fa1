package turns

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world has a clock and a scheduler.
type world struct {
	*Scheduler
	t   *testing.T
	now time.Time
}

func newWorld(t *testing.T) *world {
	random := rand.New(rand.NewPCG(1, 2))
	return &world{New(Config{MaxInFlight: 2048, MaxPerGate: 256, Random: random.Float64}), t, time.Unix(1_700_000_000, 0)}
}

func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

// admit returns a turn that has its place. One that waits for it is ended.
func (w *world) admit(user, gate string) (*Turn, time.Duration) {
	turn, delay := w.Admit(w.now, user, gate, FirstTry)
	if turn != nil && !hasPlace(turn) {
		w.End(w.now, turn, Unused)
		return nil, w.PutOff(turn)
	}
	return turn, delay
}

func tryOf(fails bool) Try {
	if fails {
		return RetryOfFailing
	}
	return FirstTry
}

func hasPlace(turn *Turn) bool { return turn.state == young || turn.state == hanging }

func (w *world) must(user, gate string) *Turn {
	w.t.Helper()
	turn, delay := w.admit(user, gate)
	if turn == nil {
		w.t.Fatalf("%s at %s waits for %v", user, gate, delay)
	}
	return turn
}

func (w *world) claimable(gate string) int {
	return w.Claimable(w.now, gate).Most
}

func (w *world) end(turn *Turn, r Result) { w.End(w.now, turn, r) }

// admitted fills a gate with requests of different users.
func (w *world) admitted(gate string) (turns []*Turn) {
	for n := range 4096 {
		turn, _ := w.admit(fmt.Sprint(gate, len(turns), n), gate)
		if turn == nil {
			return turns
		}
		turns = append(turns, turn)
	}
	return turns
}

// prove makes a gate answer many requests.
func (w *world) prove(gate string) {
	for n := range 400 {
		w.end(w.must(fmt.Sprint("p", n), gate), Taken)
	}
}

// Of a user's four requests, one is to a gate that answers the user quickly, and another repeats no failed one. Of 16, if
// some have no answer for 2 s, and of 16 that wait, four are.
func TestAUserHasFourRequests(t *testing.T) {
	for label, test := range map[string]struct {
		try         Try
		isWell      bool // the gates have answered the user
		atOnce, all int
	}{
		"quick gates": {FirstTry, true, 4, 16}, "new gates": {FirstTry, false, 3, 12},
		"repeated, quick gates": {Retry, true, 3, 12}, "repeated, new gates": {Retry, false, 2, 8}, "after a hang": {RetryOfFailing, false, 2, 8},
	} {
		t.Run(label, func(t *testing.T) {
			w, n := newWorld(t), 0
			if test.isWell {
				for gate := range 18 {
					w.end(w.must("a", fmt.Sprint("gate", gate)), Taken)
				}
			}
			fill := func() time.Duration {
				turn, _ := w.Admit(w.now, "a", fmt.Sprint("gate", n), test.try)
				for ; hasPlace(turn); turn, _ = w.Admit(w.now, "a", fmt.Sprint("gate", n), test.try) {
					n++
				}
				w.End(w.now, turn, Unused)
				return w.PutOff(turn)
			}
			if delay := fill(); n != test.atOnce || delay <= 0 || delay > 300*time.Millisecond {
				t.Fatalf("%d begin at once, one more is put off for %v", n, delay)
			}
			w.must("b", "new gate")
			for range 10 {
				w.pass(2 * time.Second)
				fill()
			}
			if n != test.all {
				t.Errorf("%d begin", n)
			}
			waiting := 0
			for turn, _ := w.Admit(w.now, "a", "gate99", test.try); turn != nil; turn, _ = w.Admit(w.now, "a", "gate99", test.try) {
				waiting++
			}
			if want := map[Try]int{FirstTry: 12, Retry: 8, RetryOfFailing: 8}[test.try]; waiting != want { // at a new gate
				t.Errorf("%d wait, want %d", waiting, want)
			}
		})
	}
}

// What is refused at failing gates makes no request to a well one wait.
func TestARefusalCountsForItsShare(t *testing.T) {
	w := newWorld(t)
	w.end(w.must("a", "well"), Taken)
	var last time.Duration
	for n := range 200 {
		if turn, delay := w.Admit(w.now, "a", fmt.Sprint("dead", n), Retry); turn == nil {
			last = delay
		}
	}
	if last < 4*time.Second {
		t.Errorf("the last one is put off for %v", last)
	}
	if turn := w.must("a", "well"); turn.Ready != nil {
		t.Error("the well gate waits")
	}
}

// A gate that answers, however slowly, gets twice what Little's law says, and more.
func TestAGateGrowsWhileItAnswers(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 1500 * time.Millisecond} {
		w := newWorld(t)
		var limits []int
		for range 6 {
			turns := w.admitted("g")
			limits = append(limits, len(turns))
			w.pass(took)
			for _, turn := range turns {
				w.end(turn, Taken)
			}
		}
		if want := []int{newPlaces, newGate, 2 * newGate}; limits[0] != want[0] || limits[1] < want[1] || limits[5] < want[2] {
			t.Errorf("answers after %v: %d requests at once, want at least %v", took, limits, want)
		}
		w.pass(time.Minute)
		w.end(w.must("a", "g"), Taken)
		if got := len(w.admitted("g")); got > 2*newGate {
			t.Errorf("after a quiet minute: %d requests at once", got)
		}
	}
}

// Failures of two users do not lower the limit of a gate, failures of three users do.
func TestFailuresOfThreeUsersLowerTheLimit(t *testing.T) {
	for users, want := range map[int]int{2: newPlaces, 3: 1} {
		w := newWorld(t)
		for n := range 12 {
			w.end(w.must(fmt.Sprint("u", n%users), "g"), Failed)
			w.pass(400 * time.Millisecond)
		}
		if got := len(w.admitted("g")); got != want {
			t.Errorf("failures of %d users: %d requests at once, want %d", users, got, want)
		}
	}
}

// Three hundred accounts have gates of their own that hang. All that hang have half of the
// host's places.
func TestUsersShareThePlacesOfRequestsThatHang(t *testing.T) {
	w := newWorld(t)
	w.prove("well")
	for range 30 {
		for user := range 300 {
			for n := range 4 {
				w.admit(fmt.Sprint("hangs", user), fmt.Sprint("gate", user, n))
			}
		}
		w.pass(hangAfter)
		w.end(w.must("well", "well"), Taken)
	}
	if s := w.Stats(); s.Hanging < 900 || s.Hanging > 1024+300 {
		t.Errorf("%d requests hang", s.Hanging)
	}
	for user, u := range w.users {
		if n := len(u.hanging); n > 2048/2/300+maxUser {
			t.Errorf("%d requests of %s hang", n, user)
		}
	}
	// A user below its share begins at once, also at a new gate.
	w.end(w.must("another", "new gate"), Taken)
	w.must("another", "well")
	// A user that hangs can still send to gates that answer.
	w.must("hangs1", "well")
}

// newPlaces are the places of users without answers at a new gate.
const newPlaces = newGate * 3 / 4

func TestWaitingRequestsGetTheirPlacesInOrder(t *testing.T) {
	w := newWorld(t)
	var turns []*Turn
	for n := range 2 * newPlaces {
		turn, _ := w.Admit(w.now, fmt.Sprint("u", n), "g", FirstTry)
		turns = append(turns, turn)
	}
	for n, turn := range turns {
		if want := n < newPlaces; hasPlace(turn) != want || (turn.Ready == nil) != want {
			t.Fatalf("%d has a place: %v", n, hasPlace(turn))
		}
	}
	w.end(turns[newPlaces], Unused)
	w.end(turns[0], Neutral)
	if hasPlace(turns[newPlaces]) || !hasPlace(turns[newPlaces+1]) || hasPlace(turns[newPlaces+2]) {
		t.Error("the next request in line has no place")
	}
	select {
	case <-turns[newPlaces+1].Ready:
	default:
		t.Error("it is not told")
	}
	// Requests that hang free their places.
	w.pass(hangAfter)
	w.Tick(w.now)
	for _, turn := range turns[newPlaces+2 : newPlaces+4] {
		if !hasPlace(turn) {
			t.Error("a request has no place")
		}
	}
}

// One user's requests fill no line.
func TestAUserHasFewRequestsInALine(t *testing.T) {
	w := newWorld(t)
	for n := range newPlaces {
		w.must(fmt.Sprint("u", n), "g")
	}
	admitted := 0
	for range 100 {
		if turn, _ := w.Admit(w.now, "attacker", "g", FirstTry); turn != nil {
			admitted++
		}
	}
	turn, _ := w.Admit(w.now, "well", "g", FirstTry)
	if at := slices.Index(w.gates["g"].lines[classUnknown], turn); admitted != maxUserWaiting*3/4 || at != maxUser*3/4 {
		t.Errorf("the attacker has %d, and another user is number %d in line", admitted, at)
	}
}

// An attacker's requests of one gate do not keep back its own at another.
func TestAUserWaitsAtManyGates(t *testing.T) {
	w := newWorld(t)
	var turns []*Turn
	w.end(w.must("a", "g"), Taken)
	for range maxUser {
		turns = append(turns, w.must("a", "g"))
	}
	for n := range 3 {
		turn, _ := w.Admit(w.now, "a", fmt.Sprint("other", n), FirstTry)
		turns = append(turns, turn)
	}
	for n := range 4 {
		w.end(turns[n], Taken)
		if n > 0 && !hasPlace(turns[maxUser+n-1]) { // one place is for gates that have answered
			t.Errorf("request %d has no place", n-1)
		}
	}
}

func TestAGateWithSomeSuccessesStaysOpen(t *testing.T) {
	w := newWorld(t)
	for n := range 200 {
		for p := range 3 {
			w.end(w.must(fmt.Sprint("fails", p), "g"), Failed)
		}
		if n%4 == 0 {
			w.end(w.must("well", "g"), Taken)
		}
		w.pass(time.Second)
	}
	if !w.IsOpen("g") {
		t.Error("the gate is closed")
	}
	// Another app at the gateway is another gate.
	w.close("https://gw:443 ill")
	if !w.IsOpen("https://gw:443 well") || w.IsOpen("https://gw:443 ill") {
		t.Error("apps share a gate")
	}
}

// close makes a gate fail until it closes.
func (w *world) close(gate string) {
	w.t.Helper()
	for n := 0; w.IsOpen(gate); n++ {
		if turn, _ := w.admit(fmt.Sprint("u", n%3), gate); turn != nil {
			w.end(turn, Failed)
		}
		w.pass(time.Second)
		if n > 20 {
			w.t.Fatal("the gate does not close")
		}
	}
}

func TestTwoUsersCloseNoGate(t *testing.T) {
	w := newWorld(t)
	for n := range 100 {
		w.end(w.must(fmt.Sprint("u", n%2), "g"), Failed)
		w.pass(time.Second)
	}
	if !w.IsOpen("g") {
		t.Error("the gate is closed")
	}
}

func TestAClosedGateIsProbed(t *testing.T) {
	w := newWorld(t)
	w.close("g")
	var probes []time.Duration
	closed := w.gates["g"].closedAt
	for range 400 {
		turn, delay := w.admit("u0", "g")
		if turn != nil {
			probes = append(probes, w.now.Sub(closed).Round(time.Second))
			if other, _ := w.admit("u1", "g"); other != nil {
				t.Fatal("two probes at once")
			}
			w.end(turn, Failed)
		} else if delay != 0 || w.claimable("g") != 0 {
			t.Fatalf("put off for %v, %d may be claimed", delay, w.claimable("g"))
		}
		w.pass(100 * time.Millisecond)
	}
	want := []time.Duration{1, 3, 7, 12, 17}
	for i, at := range want {
		if i >= len(probes) || (probes[i]-at*time.Second).Abs() > time.Second {
			t.Fatalf("probes at %v, want %v s", probes, want)
		}
	}
	for !w.IsOpen("g") {
		if turn, _ := w.admit(fmt.Sprint(w.now), "g"); turn != nil {
			w.end(turn, Taken)
		}
		w.pass(100 * time.Millisecond)
	}
	w.pass(time.Hour)
	w.prove("g")
}

// A user whose requests did not fail probes a closed gate at once, one in a second.
func TestAUserWithoutFailuresProbesAClosedGate(t *testing.T) {
	w := newWorld(t)
	w.close("g")
	w.gates["g"].probeAt = w.now.Add(maxProbeDelay)
	if turn, _ := w.admit("u0", "g"); turn != nil {
		t.Error("a user that failed probes the gate")
	}
	probe := w.must("well", "g")
	next, _ := w.Admit(w.now, "well too", "g", FirstTry)
	if next == nil || hasPlace(next) {
		t.Errorf("the next one does not wait for the probe: %+v", next)
	}
	w.end(probe, Taken)
	if !w.IsOpen("g") || !hasPlace(next) {
		t.Error("the gate is closed, or the next one waits still")
	}
	// During an outage there is one in a second.
	w.end(next, Taken)
	w.pass(time.Minute)
	w.close("g")
	w.gates["g"].probeAt = w.now.Add(time.Hour)
	probes := 0
	for n := range 100 {
		if turn, _ := w.admit(fmt.Sprint("another", n), "g"); turn != nil {
			probes++
			w.end(turn, Failed)
			w.gates["g"].probeAt = w.now.Add(time.Hour)
		}
		w.pass(100 * time.Millisecond)
	}
	if probes < 9 || probes > 11 {
		t.Errorf("%d probes in ten seconds", probes)
	}
}

func TestAnUnusedProbePassesToTheNextRequest(t *testing.T) {
	w := newWorld(t)
	w.close("g")
	w.pass(time.Second)
	for n := range 3 {
		probe, _ := w.admit(fmt.Sprint("user", n), "g")
		if probe == nil {
			t.Fatalf("request %d is no probe", n)
		}
		w.end(probe, Unused)
	}
}

// A gate that answers with a failure is reached, too. Gates that have never answered do not count when others have.
func TestAHostThatReachesNoGatewayIsCutOff(t *testing.T) {
	w := newWorld(t)
	unreached := func(name string) {
		for range 10 {
			for n := range 3 {
				if turn, _ := w.admit(fmt.Sprint("u", n), fmt.Sprint(name, n)); turn != nil {
					w.end(turn, Unreached)
				}
			}
			w.pass(time.Second)
		}
	}
	if unreached("first"); !w.IsCutOff(w.now) {
		t.Error("a host that has never reached a gateway is not cut off")
	}
	if l := w.Claimable(w.now, "first0"); !l.IsUnreached {
		t.Error("a gate that was not reached is not known as such")
	}
	w.end(w.must("a", "g1"), Answered)
	if l := w.Claimable(w.now, "g1"); w.IsCutOff(w.now) || l.IsUnreached {
		t.Error("an answer does not count as one")
	}
	if unreached("never"); w.IsCutOff(w.now) {
		t.Error("gates that have never answered cut a host off that others have answered")
	}
	w.end(w.must("a", "g2"), Answered)
	w.end(w.must("a", "g0"), Taken)
	for range 10 { // one account names many gates
		for n := range 10 {
			if turn, _ := w.admit("attacker", fmt.Sprint("g", n)); turn != nil {
				w.end(turn, Unreached)
			}
		}
		w.pass(time.Second)
	}
	if w.IsCutOff(w.now) {
		t.Error("one user cuts a host off")
	}
	if unreached("g"); !w.IsCutOff(w.now) || w.Capacity(w.now) > 3 {
		t.Errorf("cut off: %v, capacity for %d", w.IsCutOff(w.now), w.Capacity(w.now))
	}
	if w.MayReach(w.now, "g0") || !w.MayReach(w.now, "g77") {
		t.Error("a host that is cut off tries a gate that failed, or not one without failures")
	}
	w.end(w.must("b", "g77"), Taken)
	if w.IsCutOff(w.now) {
		t.Error("a host that reaches a gateway is cut off")
	}
	w.end(w.must("c", "blocked"), Blocked)
	w.pass(59 * time.Minute)
	if turn, _ := w.admit("c", "blocked"); turn != nil {
		t.Error("a blocked address is tried within the hour")
	}
	w.pass(time.Minute)
	w.must("c", "blocked")
}

func TestCountsMatchTheTurns(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := New(Config{MaxInFlight: 20, MaxPerGate: 6, Random: random.Float64})
		now := time.Unix(1_700_000_000, 0)
		var all []*Turn
		for range 2000 {
			now = now.Add(time.Duration(random.Int64N(int64(700 * time.Millisecond))))
			if len(all) > 0 && random.IntN(2) == 0 {
				n := random.IntN(len(all))
				s.End(now, all[n], Result(random.IntN(int(Neutral)+1)))
				all = append(all[:n], all[n+1:]...)
			} else if turn, delay := s.Admit(now, fmt.Sprint(random.IntN(4)), fmt.Sprint(random.IntN(5)), tryOf(random.IntN(8) == 0)); turn != nil {
				all = append(all, turn)
			} else if delay < 0 || delay > 10*time.Minute {
				t.Fatalf("seed %d: put off for %v", seed, delay)
			}
			users, gates, late := map[string]int{}, map[string]int{}, map[string]int{}
			inFlight, silent, hanging, waits := 0, 0, 0, 0
			for _, turn := range all {
				if !hasPlace(turn) {
					waits++
					continue
				}
				inFlight++
				users[turn.User]++
				if turn.state == young {
					if turn.isLate {
						late[turn.Gate]++
					} else {
						gates[turn.Gate]++
					}
					if turn.gate.isSlow || turn.isLate {
						silent++
					}
				} else {
					hanging++
				}
			}
			if s.young.Len()+s.hanging != inFlight || s.slow != silent || s.hanging != hanging || s.waiting != waits {
				t.Fatalf("seed %d: %d young, %d silent, %d hang, %d wait; counted %d, %d, %d, %d", seed,
					s.young.Len(), s.slow, s.hanging, s.waiting, inFlight, silent, hanging, waits)
			}
			for name, g := range s.gates {
				if g.inFlight() != gates[name] || gates[name] > 6+1 || g.late != late[name] || g.late > 6 { // with a probe
					t.Fatalf("seed %d: %d at a gate, %d late", seed, gates[name], late[name])
				}
			}
			for _, n := range users {
				if n > maxUserAll {
					t.Fatalf("seed %d: %d of a user", seed, n)
				}
			}
		}
	}
}

// Users fill the lines of slow gates. A user of an idle gate has a place at once, and a look returns as many users as ever.
func TestUsersWithManyRequestsInLineAreRefusedFirst(t *testing.T) {
	w := newWorld(t)
	w.prove("well")
	for n := range 24 {
		for user := range 300 {
			w.Admit(w.now, fmt.Sprint("busy", user), fmt.Sprint("https://slow", user, " app", n), FirstTry)
		}
	}
	w.must("idle", "well")
	w.must("idle too", "new")
	if got := w.Capacity(w.now); got != maxClaims {
		t.Errorf("a look returns %d users", got)
	}
	for n := range 2 * maxWaiting { // one request of each user
		w.Admit(w.now, fmt.Sprint("user", n), "full", FirstTry)
	}
	if s := w.Stats(); s.Waiting != maxWaiting {
		t.Errorf("%d requests wait", s.Waiting)
	}
	w.must("idle again", "well")
	if turn, _ := w.Admit(w.now, "user3000", "full", FirstTry); turn != nil {
		t.Error("a user with a request in line has one more")
	}
}
