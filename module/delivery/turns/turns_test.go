package turns

import (
	"fmt"
	"math/rand/v2"
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

func (w *world) admit(user, gate string) (*Turn, time.Duration) { return w.Admit(w.now, user, gate) }

func (w *world) must(user, gate string) *Turn {
	w.t.Helper()
	turn, delay := w.admit(user, gate)
	if turn == nil {
		w.t.Fatalf("%s at %s waits for %v", user, gate, delay)
	}
	return turn
}

func (w *world) end(turn *Turn, r Result) { w.End(w.now, turn, r, time.Minute) }

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

func TestAUserHasFourRequests(t *testing.T) {
	w := newWorld(t)
	for n := range 4 {
		w.must("a", fmt.Sprint("gate", n))
	}
	if turn, delay := w.admit("a", "other"); turn != nil || delay <= 0 || delay > 300*time.Millisecond {
		t.Errorf("a fifth request: got %v, %v", turn, delay)
	}
	w.must("b", "other")
	w.pass(2 * time.Second) // slow requests have another limit
	for n := 4; n < 16; n++ {
		w.must("a", fmt.Sprint("gate", n))
		if n%4 == 3 {
			w.pass(2 * time.Second)
		}
	}
	if turn, _ := w.admit("a", "other"); turn != nil {
		t.Error("a 17th request has a turn")
	}
}

func TestAGateGrowsWhileItAnswers(t *testing.T) {
	w := newWorld(t)
	turns := w.admitted("g")
	if len(turns) != newGate {
		t.Errorf("a new gate: %d requests", len(turns))
	}
	for _, turn := range turns {
		w.end(turn, Taken)
	}
	w.prove("g")
	turns = w.admitted("g")
	if len(turns) != 256 {
		t.Errorf("an answering gate: %d requests", len(turns))
	}
	for range 10 {
		w.pass(1100 * time.Millisecond)
		w.admit("x", "g")
	}
	for _, turn := range turns {
		w.end(turn, Neutral)
	}
	if got := len(w.admitted("g")); got != minGate {
		t.Errorf("a hanging gate: %d requests", got)
	}
}

func TestHangingGatesLeaveRoomForOtherGates(t *testing.T) {
	w := newWorld(t)
	w.prove("well")
	for n := range 1000 {
		w.admitted(fmt.Sprint("hangs", n))
	}
	w.pass(10 * time.Second)
	if got := len(w.admitted("well")); got != 256 {
		t.Errorf("a gate that answers gets %d", got)
	}
	w.end(w.must("a", "new"), Taken)
	w.must("a", "new")
	for n := range 1000 {
		w.admitted(fmt.Sprint("hangs later", n))
	}
	if s := w.Stats(); s.Slow != 2048 {
		t.Errorf("%d requests to hanging or new gates", s.Slow)
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
		w.end(w.must(fmt.Sprint("u", n%3), gate), Failed)
		w.pass(time.Second)
		if n > 20 {
			w.t.Fatal("the gate does not close")
		}
	}
}

func TestTwoUsersCloseNoGate(t *testing.T) {
	for name, r := range map[string]Result{"failures": Failed, "Retry-After": Throttled} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for n := range 100 {
				w.end(w.must(fmt.Sprint("u", n%2), "g"), r)
				w.pass(time.Second)
			}
			if !w.IsOpen("g") {
				t.Error("the gate is closed")
			}
		})
	}
}

func TestAClosedGateIsProbed(t *testing.T) {
	w := newWorld(t)
	w.close("g")
	var probes []time.Duration
	closed := w.gates["g"].closedAt
	for range 400 {
		turn, delay := w.admit(fmt.Sprint(w.now), "g")
		if turn != nil {
			probes = append(probes, w.now.Sub(closed).Round(time.Second))
			if other, _ := w.admit("another", "g"); other != nil {
				t.Fatal("two probes at once")
			}
			w.end(turn, Failed)
		} else if delay <= 0 || delay > 15*time.Second {
			t.Fatalf("put off for %v", delay)
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

func TestABackloggedGateIsServedWithinTwentySeconds(t *testing.T) {
	w := newWorld(t)
	w.close("g")
	const backlogs = 10_000
	at := map[int]time.Time{} // when each is due
	for n := range backlogs {
		at[n] = w.now
	}
	step := func(r Result) {
		for n, due := range at {
			if due.After(w.now) {
				continue
			}
			turn, delay := w.admit(fmt.Sprint("u", n), "g")
			if turn == nil {
				at[n] = w.now.Add(delay)
				continue
			}
			w.end(turn, r)
			if r == Taken {
				delete(at, n)
			} else {
				at[n] = w.now.Add(time.Second)
			}
		}
		w.pass(50 * time.Millisecond)
	}
	for range 10 * 60 * 20 {
		step(Failed)
	}
	back := w.now
	for len(at) > 0 {
		step(Taken)
	}
	if took := w.now.Sub(back); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestClosedGatesBoundTheLooksPerSecond(t *testing.T) {
	for _, c := range []struct {
		name           string
		gates, waiting int // at each gate
		looks          int // per second, of all gates
	}{
		{"few at one gate", 1, 1000, 125},
		{"many at one gate", 1, 10_000, 1250},
		{"too many at one gate", 1, 40_000, 1250},
		{"many at three gates", 3, 10_000, 3750},
		{"too many at forty gates", 40, 2500, 3750},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			due := map[int64][]int{}
			for n := range c.gates * c.waiting {
				if n < c.gates {
					w.close(fmt.Sprint("g", n))
				}
				due[w.now.Unix()+1] = append(due[w.now.Unix()+1], n)
			}
			looks := 0
			for second := range 240 {
				w.pass(time.Second)
				for _, n := range due[w.now.Unix()] {
					turn, delay := w.admit(fmt.Sprint("u", n), fmt.Sprint("g", n%c.gates))
					if turn != nil {
						w.end(turn, Failed)
					}
					next := w.now.Add(max(delay, time.Second)).Unix()
					due[next] = append(due[next], n)
					if second >= 120 {
						looks++
					}
				}
				delete(due, w.now.Unix())
			}
			if got := looks / 120; got < c.looks*8/10 || got > c.looks*13/10 {
				t.Errorf("%d looks per second, want about %d", got, c.looks)
			}
		})
	}
}

func TestRetryAfterOfThreeUsersClosesTheGateForAWhile(t *testing.T) {
	w := newWorld(t)
	for n := range 3 {
		if !w.IsOpen("g") {
			t.Errorf("closed by %d", n)
		}
		w.end(w.must(fmt.Sprint("u", n), "g"), Throttled)
	}
	if w.IsOpen("g") {
		t.Fatal("the gate is open")
	}
	w.pass(4 * time.Second)
	if turn, _ := w.admit("a", "g"); turn != nil {
		t.Error("too early")
	}
	w.pass(time.Second)
	w.end(w.must("a", "g"), Taken)
	if !w.IsOpen("g") {
		t.Error("the gate is closed")
	}
}

func TestOperatorsHoldGateways(t *testing.T) {
	w := newWorld(t)
	w.Hold([]string{"https://gw:443"})
	if turn, delay := w.admit("a", "https://gw:443 app"); turn != nil || delay < closedDelay || delay > 3*closedDelay {
		t.Errorf("got %v, %v", turn, delay)
	}
	w.must("a", "https://gw:8443 app")
	w.Hold(nil)
	w.must("a", "https://gw:443 app")
}

func TestAHostThatReachesNoGatewayIsCutOff(t *testing.T) {
	w := newWorld(t)
	w.end(w.must("a", "g0"), Taken)
	for range 10 {
		for n := range 3 {
			if turn, _ := w.admit("a", fmt.Sprint("g", n)); turn != nil {
				w.end(turn, Unreached)
			}
		}
		w.pass(time.Second)
	}
	if !w.IsCutOff(w.now) || w.Room(w.now) > 3 {
		t.Errorf("cut off: %v, room for %d", w.IsCutOff(w.now), w.Room(w.now))
	}
	if w.MayReach(w.now, "g0") || !w.MayReach(w.now, "g7") {
		t.Error("a host that is cut off tries a gate that failed, or not one without failures")
	}
	w.end(w.must("b", "g7"), Taken)
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
				s.End(now, all[n], Result(random.IntN(int(Neutral)+1)), time.Second)
				all = append(all[:n], all[n+1:]...)
			} else if turn, delay := s.Admit(now, fmt.Sprint(random.IntN(4)), fmt.Sprint(random.IntN(5))); turn != nil {
				all = append(all, turn)
			} else if delay <= 0 || delay > 10*time.Minute {
				t.Fatalf("seed %d: put off for %v", seed, delay)
			}
			users, gates, slow := map[string]int{}, map[string]int{}, 0
			for _, turn := range all {
				users[turn.User]++
				gates[turn.Gate]++
				if turn.gate.isSlow {
					slow++
				}
			}
			if s.inFlight != len(all) || s.slow != slow || len(all) > 2*20 {
				t.Fatalf("seed %d: %d in flight and %d slow, counted %d and %d", seed, len(all), slow, s.inFlight, s.slow)
			}
			for name, g := range s.gates {
				if len(g.turns) != gates[name] || gates[name] > 6 {
					t.Fatalf("seed %d: %d at a gate", seed, gates[name])
				}
			}
			for _, n := range users {
				if n > maxUserSlow {
					t.Fatalf("seed %d: %d of a user", seed, n)
				}
			}
		}
	}
}
