package turns

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// simulation runs hosts and gateways in virtual time.
type simulation struct {
	*world
	events  []event // the last one is next
	waiting []waitingTurn
}

type waitingTurn struct {
	*Turn
	begin func()
}

type event struct {
	at time.Time
	do func()
}

func (s *simulation) after(d time.Duration, do func()) {
	e := event{s.now.Add(d), do}
	at, _ := slices.BinarySearchFunc(s.events, e, func(a, b event) int { return cmp.Or(b.at.Compare(a.at), 1) })
	s.events = slices.Insert(s.events, at, e)
}

func (s *simulation) every(d time.Duration, do func()) {
	do()
	s.after(d, func() { s.every(d, do) })
}

func (s *simulation) run(d time.Duration) {
	for end := s.now.Add(d); s.events[len(s.events)-1].at.Before(end); {
		e := s.events[len(s.events)-1]
		s.events = s.events[:len(s.events)-1]
		s.now = e.at
		e.do()
		s.waiting = slices.DeleteFunc(s.waiting, func(t waitingTurn) bool {
			if hasPlace(t.Turn) {
				t.begin()
			}
			return t.state != waiting && t.state != inLine
		})
	}
}

// send sends a request, which ends with r after took. Done learns whether it was sent, and
// for how long it is put off otherwise. Begun is called when it has its place.
func (s *simulation) send(user, gate string, fails bool, took time.Duration, r Result, begun func(), done func(sent bool, putOff time.Duration)) {
	turn, delay := s.Admit(s.now, user, gate, tryOf(fails))
	if turn == nil {
		done(false, delay)
		return
	}
	begin := func() {
		begun()
		s.after(took, func() {
			s.End(s.now, turn, r)
			done(true, 0)
		})
	}
	if hasPlace(turn) {
		begin()
		return
	}
	s.waiting = append(s.waiting, waitingTurn{turn, begin})
	s.after(15*time.Second, func() {
		if !hasPlace(turn) && turn.state != ended {
			s.End(s.now, turn, Unused)
			done(false, s.PutOff(turn))
		}
	})
}

// sendAll sends requests of a user that a gate accepts after took, until one has been sent.
func (s *simulation) sendAll(user, gate string, took time.Duration, done func()) {
	s.send(user, gate, false, took, Taken, func() {}, func(sent bool, putOff time.Duration) {
		if sent {
			done()
		} else {
			s.after(putOff, func() { s.sendAll(user, gate, took, done) })
		}
	})
}

// keepBusy makes a user send always as many requests as there are gates.
func (s *simulation) keepBusy(user string, took time.Duration, gates ...string) {
	for _, gate := range gates {
		var again func()
		again = func() { s.sendAll(user, gate, took, again) }
		again()
	}
}

// measure sends a request of each user every second, and returns the 99th percentile of the times
// until the answers in a minute.
func (s *simulation) measure(users int, gate string, took time.Duration) (p99 time.Duration) {
	var times []time.Duration
	waits, from := 0, s.now.Add(5*time.Second)
	for n := range users {
		s.after(time.Duration(n)*time.Second/time.Duration(users), func() {
			s.every(time.Second, func() {
				began, isWarm := s.now, s.now.After(from)
				waits++
				s.sendAll(fmt.Sprint("other", n), gate, took, func() {
					waits--
					if isWarm {
						times = append(times, s.now.Sub(began))
					}
				})
			})
		})
	}
	s.run(time.Minute)
	slices.Sort(times)
	if waits > users*2+len(times)/100 {
		return time.Hour
	}
	return times[len(times)*99/100]
}

func newSimulation(t *testing.T) *simulation {
	s := &simulation{world: newWorld(t)}
	s.every(50*time.Millisecond, func() { s.Tick(s.now) })
	return s
}

// Row C2: users keep four requests each in flight at a gateway that accepts them after 1.9 s.
func TestASlowGatewayDelaysNoOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine, in virtual time, for long")
	}
	oneGateway := func(user, n int) string { return fmt.Sprint("https://slow app", (user+n)%5) }
	ownGateways := func(user, n int) string { return fmt.Sprint("https://slow", user, n, " app") }
	for name, test := range map[string]struct {
		gate func(user, n int) string
		took time.Duration // at the gateway of others
	}{
		"five apps of a gateway":                 {oneGateway, 10 * time.Millisecond},
		"five apps, beside another slow gateway": {oneGateway, 800 * time.Millisecond},
		"own gateways":                           {ownGateways, 10 * time.Millisecond},
		"own gateways, beside a slow one":        {ownGateways, 800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSimulation(t)
			for user := range 256 {
				s.keepBusy(fmt.Sprint("busy", user), 1900*time.Millisecond, test.gate(user, 0), test.gate(user, 1), test.gate(user, 2), test.gate(user, 3))
			}
			s.run(10 * time.Second)
			if p99 := s.measure(100, "https://well app", test.took); p99 > time.Second {
				t.Errorf("p99 of others is %v", p99)
			}
		})
	}
}

// Row C3: users fill the lines of slow gates. A user of an idle gate has a place at once, and a look returns as many users as ever.
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

// queue is a queue that remembers which users fail at the gate. Looks return its pushers.
type queue struct {
	*simulation
	pushers []*queuedPusher
	fails   map[string]bool
}

type queuedPusher struct {
	user     string
	due      time.Time
	isBusy   bool
	hangs    bool
	answered func()
}

const sharedGate = "https://shared app"

func (q *queue) look() {
	limit := q.Capacity(q.now)
	most, failing, _ := q.Claimable(q.now, sharedGate)
	most = min(most, limit)
	claimed := map[string]int{}
	slices.SortStableFunc(q.pushers, func(a, b *queuedPusher) int { return a.due.Compare(b.due) })
	for _, p := range slices.Clone(q.pushers) {
		switch {
		case p.due.After(q.now), p.isBusy, claimed[p.user] == 4, claimed[p.user] == 0 && (most == 0 || q.fails[p.user] && failing == 0):
			continue
		case claimed[p.user] == 0:
			if most--; q.fails[p.user] {
				failing--
			}
		}
		claimed[p.user]++
		q.begin(p, q.fails[p.user])
	}
}

func (q *queue) begin(p *queuedPusher, fails bool) {
	took, result := 20*time.Millisecond, Taken
	if p.hangs {
		took, result = time.Minute, Failed
	}
	p.isBusy = true
	scheduler := q.Scheduler
	q.send(p.user, sharedGate, fails, took, result, func() {
		if p.hangs {
			q.after(hangAfter, func() { q.fails[p.user] = true })
		}
	}, func(sent bool, putOff time.Duration) {
		if scheduler != q.Scheduler { // the host has died
			return
		}
		p.isBusy = false
		switch {
		case !sent:
			p.due = q.now.Add(putOff)
		case p.hangs:
			p.due = q.now.Add(10 * time.Second)
		default:
			p.due = q.now.Add(24 * time.Hour)
			delete(q.fails, p.user)
			p.answered()
		}
	})
}

// Row C6: requests of 200 accounts with 10 pushers each hang at a gate that 20 quiet users share.
func TestUsersWhoseRequestsHangDelayNoOthers(t *testing.T) {
	for _, quietEvery := range []time.Duration{7 * time.Second, 20 * time.Second, 60 * time.Second, 200 * time.Second} {
		q := &queue{newSimulation(t), nil, map[string]bool{}}
		q.every(time.Second, q.look)
		var times []time.Duration
		var quiet []*queuedPusher
		for n := range 20 {
			p := &queuedPusher{user: fmt.Sprint("quiet", n), due: q.now.Add(24 * time.Hour)}
			quiet = append(quiet, p)
			q.after(time.Duration(n)*quietEvery/20, func() {
				q.every(quietEvery, func() {
					began := q.now
					p.answered = func() { times = append(times, q.now.Sub(began)) }
					if p.due.After(q.now.Add(time.Hour)) { // the host claims it
						q.begin(p, false)
					}
				})
			})
		}
		q.pushers = append(q.pushers, quiet...)
		q.run(5 * time.Minute)
		for n := range 2000 {
			q.pushers = append(q.pushers, &queuedPusher{user: fmt.Sprint("hangs", n%200), due: q.now, hangs: true})
		}
		times = nil
		q.run(10 * time.Minute)
		slices.Sort(times)
		if p99 := times[len(times)*99/100]; p99 > 2*time.Second {
			t.Errorf("%d notifications of quiet users were sent, p99 is %v", len(times), p99)
		}
		if !q.IsOpen(sharedGate) || q.gates[sharedGate].limit < busyGate {
			t.Errorf("the gate is open: %v, with %d places", q.IsOpen(sharedGate), q.gates[sharedGate].limit)
		}

		// Another host starts, when all claims of this one have lapsed.
		q.Scheduler, q.waiting, q.events = newWorld(t).Scheduler, nil, nil
		q.every(50*time.Millisecond, func() { q.Tick(q.now) })
		q.every(time.Second, q.look)
		began, left := q.now, len(quiet)
		for _, p := range q.pushers {
			p.isBusy, p.due = false, began
			p.answered = func() { left-- }
		}
		slices.Reverse(q.pushers)
		q.run(10 * time.Second)
		if left > 0 {
			t.Errorf("%d quiet users have nothing after 10 s", left)
		}
	}
}
