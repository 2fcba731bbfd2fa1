package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/mxid"
)

// Each test here has an attack, and a control: the same load without it.

func isInnocent(pushkey string) bool { return strings.HasPrefix(pushkey, "key") }

// attack makes the gateway "gw" answer attackers as told, and others after 20 ms.
func (w *world) attack(answer func(context.Context, sent) (module.GatewayAnswer, error)) {
	w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
		if isInnocent(s.pushkey) {
			time.Sleep(20 * time.Millisecond)
			return module.GatewayAnswer{Status: 200}, nil
		}
		return answer(ctx, s)
	})
}

// attackers returns users with pushers at the gateways that the function names.
func (w *world) attackers(users, pushers int, gateway func(user, pusher int) string) (all []mxid.UserID) {
	for u := range users {
		all = append(all, mxid.UserID(fmt.Sprintf("@attacker%d:h", u)))
		for p := range pushers {
			w.set(all[u], fmt.Sprintf("attack%d-%d", u, p), gateway(u, p))
		}
	}
	return all
}

func atGW(int, int) string { return "gw" }

// many returns the number of accounts of an attack. With -short it is a quarter, as the race detector needs.
func many(users int) int {
	if testing.Short() {
		return users / 4
	}
	return users
}

// innocents sets a pusher for each of some users.
func (w *world) innocents(users int) (all []mxid.UserID) {
	for i := range users {
		w.set(name(i), key(i), "gw")
		all = append(all, name(i))
	}
	return all
}

// ages returns the delays of the first arrivals at pushers of innocent users, sorted.
func (w *world) ages(sentAt map[string]time.Time) (ages []time.Duration) {
	seen := map[string]bool{}
	for _, s := range w.all() {
		if _, isTimed := sentAt[s.event]; !isTimed {
			continue
		}
		if id := s.pushkey + s.event; isInnocent(s.pushkey) && s.status == 200 && !seen[id] {
			seen[id] = true
			ages = append(ages, s.began.Sub(sentAt[s.event]))
		}
	}
	slices.Sort(ages)
	return ages
}

// checkAges fails if fewer notifications of innocent users came, or later.
func (w *world) checkAges(sentAt map[string]time.Time, count int, p99 time.Duration) {
	w.t.Helper()
	ages := w.ages(sentAt)
	if len(ages) < count {
		w.t.Fatalf("%d of %d notifications came", len(ages), count)
	}
	if got := ages[len(ages)*99/100]; got > p99 {
		w.t.Errorf("p99 is %v, the latest %v", got, ages[len(ages)-1])
	}
}

// Three users at three gateways that refuse connections cut a host off. It looks slowly,
// however much waits.
func TestAHostThatIsCutOffLooksSlowly(t *testing.T) {
	for label, test := range map[string]struct {
		status, calls int // calls of the queue in a second
	}{"control": {502, 40}, "cut off": {0, 40}} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				refuse := func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
					if test.status == 0 {
						return noEgress{}.Post(ctx, module.GatewayRequest{})
					}
					return module.GatewayAnswer{Status: test.status}, nil
				}
				var users []mxid.UserID
				for i := range 60 {
					w.answer(fmt.Sprint("gw", i%3), refuse)
					w.set(name(i), key(i), fmt.Sprint("gw", i%3))
					users = append(users, name(i))
				}
				d := w.host()
				w.notify(d, 1, "!r:h", users...)
				time.Sleep(time.Minute)
				if isCutOff := d.Stats().CutOff; isCutOff != (test.status == 0) {
					t.Fatalf("cut off: %v", isCutOff)
				}
				before := w.queue.Calls()
				time.Sleep(time.Minute)
				if got := (w.queue.Calls() - before) / 60; got > test.calls {
					t.Errorf("%d calls per second", got)
				}
			})
		})
	}
}

// A full Redis refuses what the look for due pushers writes.
func TestLateGrowsWhileLooksFail(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		w.answer("gw", always(502))
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(30 * time.Second)
		if got := d.Stats().Late; got > time.Second {
			t.Errorf("late by %v although looks succeed", got)
		}
		w.fail(errors.New("OOM"))
		time.Sleep(30 * time.Second)
		if got := d.Stats().Late; got < 25*time.Second {
			t.Errorf("late by %v", got)
		}
		w.fail(nil)
		time.Sleep(2 * time.Second)
		if got := d.Stats().Late; got > time.Second {
			t.Errorf("late by %v afterwards", got)
		}
	})
}

// A gateway that always answers 200, but after 1.5 s, gets all it is owed.
func TestASlowGatewayGetsAll(t *testing.T) {
	for label, delay := range map[string]time.Duration{"control": 50 * time.Millisecond, "slow": 1500 * time.Millisecond} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.answer("gw", slow(delay, 200))
				w.innocents(100)
				d := w.host()
				sentAt := map[string]time.Time{}
				for e := range 600 {
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, "!r:h", name(e%100))
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(5 * time.Second)
				w.checkAges(sentAt, 600, 2500*time.Millisecond)
			})
		})
	}
}

// Accounts that a gateway has never answered share the places for new users there. 24 that hang delay no other first
// notification by a second; more do, by seconds, but cost none. They do it once: later, they go behind new users.
func TestFreshAccountsThatHang(t *testing.T) {
	for _, test := range []struct {
		attackers int
		lead      time.Duration // of the attack
		atMost    time.Duration
	}{
		{0, 0, time.Second}, {20, 0, time.Second}, {40, 0, 10 * time.Second}, {100, 90 * time.Second, time.Second},
	} {
		attackers := test.attackers
		t.Run(fmt.Sprint(attackers), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.attack(slow(time.Hour, 200))
				users := w.attackers(attackers, 4, atGW)
				d := w.host()
				w.set(name(99), key(99), "gw")
				w.notify(d, 19_999, "!k:h", name(99))
				time.Sleep(time.Second)
				for e := range int(test.lead / time.Second) {
					w.notify(d, 20_000+e, "!k:h", append(users, name(99))...)
					time.Sleep(time.Second)
				}
				sentAt := map[string]time.Time{}
				const events = 60 // the first of each user
				for e := range events {
					w.set(name(e), key(e), "gw")
					if e%10 == 0 && attackers > 0 {
						w.notify(d, 10_000+e, "!a:h", users...)
					}
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, "!r:h", name(e))
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(20 * time.Second)
				w.checkAges(sentAt, events, test.atMost)
			})
		})
	}
}

// failsAt returns how many gates the queue knows at which a user fails.
func (w *world) failsAt(user mxid.UserID) int {
	log, err := w.queue.Log(context.Background(), user)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(log.Failing)
}

// The queue knows at which gates a user's last request hangs: hosts that start know it, too.
func TestTheQueueKnowsWhoFails(t *testing.T) {
	for label, test := range map[string]struct {
		answer func(context.Context, sent) (module.GatewayAnswer, error)
		after  time.Duration
		fails  int
	}{
		"502":                          {always(502), 0, 0},
		"404":                          {always(404), 0, 0},
		"a request without an answer":  {slow(time.Hour, 200), 2100 * time.Millisecond, 1},
		"one that may yet be answered": {slow(time.Hour, 200), 1900 * time.Millisecond, 0},
		"the address is not allowed": {func(context.Context, sent) (module.GatewayAnswer, error) {
			return module.GatewayAnswer{}, dialguard.ErrRefused
		}, 0, 0},
		"the gateway refuses the notification":   {always(400), 0, 0},
		"the notification was sent after a wait": {slow(time.Second, 200), 3 * time.Second, 0},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.set(name1, "key", "gw")
				w.answer("gw", test.answer)
				d := w.host()
				synctest.Wait()
				w.notify(d, 1, "!r:h", name1)
				time.Sleep(test.after)
				synctest.Wait()
				if got := w.failsAt(name1); got != test.fails {
					t.Errorf("fails at %d gates, want %d", got, test.fails)
				}
				w.answer("gw", always(200))
				time.Sleep(5 * time.Minute)
				w.notify(d, 2, "!r:h", name1)
				synctest.Wait()
				if got := w.failsAt(name1); got != 0 && label != "the address is not allowed" {
					t.Errorf("afterwards: fails at %d gates", got)
				}
			})
		})
	}
}

// 200 accounts of ten pushers hang at a gateway that others share. Others are answered soon, also by a host that starts.
func TestAccountsThatHangDelayNoQuietUser(t *testing.T) {
	for label, attackers := range map[string]int{"control": 0, "200 accounts": 200} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.attack(slow(time.Hour, 200))
				users := w.attackers(attackers, 10, atGW)
				w.innocents(40)
				d, stop := w.hostOn(w.queue, w)
				n := 0
				run := func(first int, sentAt map[string]time.Time) {
					for range 60 {
						if n%10 == 0 && attackers > 0 {
							w.notify(d, 10_000+n, "!a:h", users...)
						}
						sentAt[fmt.Sprintf("$%d", n)] = time.Now()
						w.notify(d, n, "!r:h", name(first+n%20))
						n++
						time.Sleep(time.Second)
					}
				}
				run(0, map[string]time.Time{})
				running := map[string]time.Time{}
				run(0, running)
				time.Sleep(5 * time.Second)
				w.checkAges(running, 60, 2*time.Second)
				stop()
				d = w.host()
				started := map[string]time.Time{}
				run(20, started)
				time.Sleep(10 * time.Second)
				w.checkAges(started, 60, 2*time.Second)
			})
		})
	}
}

// Members of a room have pushers whose gateways are slow, fail or never answer, some of them another app's of the gateway "gw".
func TestMembersWithBadPushersDelayNoOther(t *testing.T) {
	own := func(user, pusher int) string { return fmt.Sprintf("bad%d-%d", user, pusher) }
	for label, test := range map[string]struct {
		users, pushers int
		gateway        func(user, pusher int) string
		answer         func(context.Context, sent) (module.GatewayAnswer, error)
		every          time.Duration
		p99            time.Duration
	}{
		"control":                                {0, 0, own, always(200), 250 * time.Millisecond, 0},
		"300 pushers that hang":                  {1, 300, own, slow(time.Hour, 200), 250 * time.Millisecond, time.Second},
		"a gateway that answers after 4.9 s":     {1, 30, func(int, int) string { return "bad" }, slow(4900*time.Millisecond, 200), 100 * time.Millisecond, time.Second},
		"1,000 gateways that answer after 0.9 s": {10, 100, own, slow(900*time.Millisecond, 200), 500 * time.Millisecond, 250 * time.Millisecond},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				members := append(w.attackers(test.users, test.pushers, test.gateway), w.innocents(50)...)
				for u := range test.users {
					for p := range test.pushers {
						w.answer(test.gateway(u, p), test.answer)
					}
				}
				d := w.host()
				sentAt := map[string]time.Time{}
				events := int(30 * time.Second / test.every)
				for e := range events {
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, "!r:h", members...)
					time.Sleep(test.every)
				}
				time.Sleep(2 * time.Second)
				w.checkAges(sentAt, events*50, test.p99)
			})
		})
	}
}

func TestAFailingAppDelaysNoOtherAppOfTheGateway(t *testing.T) {
	inBubble(t, func(w *world) {
		w.attack(always(502))
		members := w.innocents(10)
		for i := range members {
			w.setApp(name(i), "ill", fmt.Sprint("ill", i), "gw")
		}
		d := w.host()
		sentAt := map[string]time.Time{}
		for e := range 90 {
			sentAt[fmt.Sprintf("$%d", e)] = time.Now()
			w.notify(d, e, "!r:h", members...)
			time.Sleep(time.Second)
		}
		time.Sleep(3 * time.Second)
		w.checkAges(sentAt, 900, 2*time.Second)
	})
}

// 200 accounts of ten pushers begin to hang at a gateway that quiet users share. Three hosts send: each account gets an
// event from each of them, then again and again.
func TestAccountsThatBeginToHangDelayNoQuietUser(t *testing.T) {
	for label, test := range map[string]struct {
		attackers      int
		before, during bool // the accounts were answered before; they get events all the time
	}{"control": {0, false, false}, "new accounts": {200, false, false}, "accounts that were answered": {200, true, false}, "with events": {200, true, true}} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				users := w.attackers(many(test.attackers), 10, atGW)
				w.innocents(20)
				var hosts []*Delivery
				for range 3 {
					hosts = append(hosts, w.host())
				}
				n := 0
				notify := func(users ...mxid.UserID) {
					w.notify(hosts[n%3], n, "!r:h", users...)
					n++
				}
				run := func(turns int) map[string]time.Time {
					sentAt := map[string]time.Time{}
					for range turns {
						sentAt[fmt.Sprintf("$%d", n)] = time.Now()
						if notify(name(n % 20)); test.during && n%10 == 0 {
							notify(users...)
						}
						time.Sleep(500 * time.Millisecond)
					}
					return sentAt
				}
				run(60)
				for range 3 {
					if test.before {
						notify(users...)
						time.Sleep(time.Second)
					}
				}
				w.attack(slow(time.Hour, 200))
				for range 3 {
					notify(users...)
				}
				first, after := run(120), run(240)
				time.Sleep(30 * time.Second)
				w.checkAges(first, 120, 2*time.Second)
				w.checkAges(after, 240, 2*time.Second)
			})
		})
	}
}

// A gateway answers nobody for a while, and everybody has something waiting. Then it is back, and 200 accounts of ten
// pushers hang there. Quiet users are answered soon, whether the hosts start again or not.
func TestAfterAnOutageQuietUsersAreAnsweredSoon(t *testing.T) {
	refused, silent := always(502), slow(time.Hour, 200)
	for label, test := range map[string]struct {
		attackers       int
		outage          func(context.Context, sent) (module.GatewayAnswer, error)
		restart, before bool // whether hosts start again, and whether the accounts were answered before
	}{
		"control, without a restart": {0, refused, false, false}, "control": {0, refused, true, false}, "refused": {200, refused, true, false},
		"control, silent": {0, silent, true, false}, "silent": {200, silent, true, false},
		"without a restart": {200, refused, false, false}, "without a restart, answered before": {200, refused, false, true},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				users := append(w.attackers(many(test.attackers), 10, atGW), w.innocents(20)...)
				isAway, hangs := atomic.Bool{}, atomic.Bool{}
				hangs.Store(!test.before)
				w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
					time.Sleep(20 * time.Millisecond)
					switch {
					case isAway.Load():
						return test.outage(ctx, s)
					case hangs.Load() && !isInnocent(s.pushkey):
						return slow(time.Hour, 200)(ctx, s)
					}
					return module.GatewayAnswer{Status: 200}, nil
				})
				var hosts []*Delivery
				var stops []func()
				start := func() {
					hosts, stops = nil, nil
					for range 3 {
						d, stop := w.hostOn(w.queue, w)
						hosts, stops = append(hosts, d), append(stops, stop)
					}
				}
				start()
				if test.before {
					w.notify(hosts[0], 0, "!r:h", users...)
				} else {
					w.notify(hosts[0], 0, "!r:h", w.innocents(20)...)
				}
				time.Sleep(10 * time.Second)
				isAway.Store(true)
				hangs.Store(true)
				for n := range 8 {
					w.notify(hosts[n%3], 1+n, "!r:h", users...)
					time.Sleep(time.Second)
				}
				if test.restart { // they are killed
					w.fail(errors.New("killed"))
					for _, stop := range stops {
						stop()
					}
					w.fail(nil)
					start()
				}
				isAway.Store(false)
				began := time.Now()
				sentAt := map[string]time.Time{}
				for n := range 120 {
					if n >= 20 { // all quiet users have had an answer
						sentAt[fmt.Sprintf("$%d", 100+n)] = time.Now()
					}
					w.notify(hosts[n%3], 100+n, "!r:h", name(n%20))
					time.Sleep(500 * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				w.checkAges(sentAt, 100, 2*time.Second)
				all := map[string]bool{}
				var last time.Duration
				for _, s := range w.all() {
					if s.event == "$8" && s.status == 200 && isInnocent(s.pushkey) && !all[s.pushkey] {
						all[s.pushkey], last = true, max(last, s.at.Sub(began))
					}
				}
				if len(all) < 20 || last > 15*time.Second { // 4 to 8 s, rarely 11
					t.Errorf("%d of 20 users have all, the last after %v", len(all), last)
				}
			})
		})
	}
}

// A user's dead pushers delay neither the user's phone nor other users.
func TestDeadPushersDelayNoPhone(t *testing.T) {
	own, shared := func(_, pusher int) string { return fmt.Sprint("dead", pusher) }, func(int, int) string { return "dead" }
	refuse := func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
		return noEgress{}.Post(ctx, module.GatewayRequest{})
	}
	for label, test := range map[string]struct {
		gateway func(user, pusher int) string
		answer  func(context.Context, sent) (module.GatewayAnswer, error)
	}{
		"502 at one gateway":      {shared, slow(50*time.Millisecond, 502)},
		"507 at one gateway":      {shared, always(507)},
		"refused by own gateways": {own, refuse},
		"slow at one gateway":     {shared, slow(time.Second, 502)},
		"slow at own gateways":    {own, slow(time.Second, 502)},
		"silent at one gateway":   {shared, slow(time.Hour, 200)},
		"silent at own gateways":  {own, slow(time.Hour, 200)},
	} {
		for _, run := range []struct {
			pushers, events int
			every           time.Duration
		}{{20, 120, 500 * time.Millisecond}, {50, 400, 50 * time.Millisecond}, {100, 120, 500 * time.Millisecond}} {
			if testing.Short() && run.pushers != 20 {
				continue
			}
			t.Run(fmt.Sprintf("%d, %s", run.pushers, label), func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(w *world) {
					for p := range run.pushers {
						w.answer(test.gateway(0, p), test.answer)
					}
					w.set("@attacker0:h", "key-phone", "gw")
					w.set(name1, "key-other", "gw")
					d, stop := w.hostOn(w.queue, w)
					sentAt := map[string]time.Time{}
					send := func(first int) {
						for e := range run.events {
							sentAt[fmt.Sprintf("$%d", first+e)] = time.Now()
							w.notify(d, first+e, "!r:h", "@attacker0:h", name1)
							time.Sleep(run.every)
						}
					}
					w.notify(d, 10_000, "!r:h", "@attacker0:h", name1)
					w.attackers(1, run.pushers, test.gateway)
					send(0)
					time.Sleep(10 * time.Minute) // all pushers have been tried
					stop()
					d = w.host()
					send(run.events)
					time.Sleep(time.Minute)
					w.checkAges(sentAt, 4*run.events, 10*time.Millisecond)
					if calls := w.queue.Calls() / int(time.Since(w.began).Seconds()); calls > 120 {
						t.Errorf("%d calls of the queue in a second", calls)
					}
				})
			})
		}
	}
}

// 400 users fail at a gateway that answers few others, so that it is closed most of the time. Each of these is answered soon.
func TestAClosedGatewayAnswersNewUsersSoon(t *testing.T) {
	for label, answer := range map[string]func(context.Context, sent) (module.GatewayAnswer, error){"refused": always(502), "hangs": slow(time.Hour, 200)} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.attack(answer)
				users := w.attackers(many(400), 1, atGW)
				w.innocents(20)
				var hosts []*Delivery
				for range 3 {
					hosts = append(hosts, w.host())
				}
				sentAt := map[string]time.Time{}
				n := 0
				for i := range 20 {
					for range 30 {
						w.notify(hosts[n%3], n, "!a:h", users[n%len(users)], users[(n*7)%len(users)], users[(n*13)%len(users)])
						n++
						time.Sleep(time.Second)
					}
					sentAt[fmt.Sprintf("$%d", n)] = time.Now()
					w.notify(hosts[n%3], n, "!r:h", name(i))
					n++
				}
				time.Sleep(60 * time.Second)
				w.checkAges(sentAt, 20, 2*time.Second)
			})
		})
	}
}

// The pushers of 30 users are at addresses of their own that refuse connections. That cuts no quiet host off: a gateway
// that fails three times gets its notification after the waits of these failures, 7 s at most.
func TestManyDeadGatewaysDelayNoRetry(t *testing.T) {
	inBubble(t, func(w *world) {
		own := func(user, pusher int) string { return fmt.Sprintf("dead%d-%d", user, pusher) }
		attackers := w.attackers(many(30), 100, own)
		for u := range attackers {
			for p := range 100 {
				w.answer(own(u, p), func(ctx context.Context, _ sent) (module.GatewayAnswer, error) {
					return noEgress{}.Post(ctx, module.GatewayRequest{})
				})
			}
		}
		var first atomic.Int64
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			if first.Add(1) <= 3 {
				return module.GatewayAnswer{Status: 502}, nil
			}
			return module.GatewayAnswer{Status: 200}, nil
		})
		d := w.host()
		w.notify(d, 1, "!r:h", attackers...)
		time.Sleep(10 * time.Second)
		sentAt := map[string]time.Time{"$2": time.Now()}
		w.notify(d, 2, "!r:h", w.innocents(1)...)
		time.Sleep(25 * time.Second)
		w.checkAges(sentAt, 1, 15*time.Second)
	})
}
