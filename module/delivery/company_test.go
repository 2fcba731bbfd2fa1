package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// Each test here has an attack, and a control: the same load without it.

func isInnocent(pushkey string) bool { return strings.HasPrefix(pushkey, "key") }

// checkAges fails if fewer notifications of innocent users came, or later.
func (w *world) checkAges(sentAt map[string]time.Time, count int, p99 time.Duration) {
	w.t.Helper()
	ages := w.ages(sentAt, isInnocent)
	if len(ages) < count {
		w.t.Fatalf("%d of %d notifications came", len(ages), count)
	}
	if got := ages[len(ages)*99/100]; got > p99 {
		w.t.Errorf("p99 is %v, the latest %v", got, ages[len(ages)-1])
	}
}

// The pushers of attackers are answered with 429 and a Retry-After of 600 s, or 502, at a
// gateway that others share.
func TestFailingPushersOfFewUsersDelayNoOthers(t *testing.T) {
	for name, test := range map[string]struct {
		users, pushers int
		answer         module.GatewayAnswer
	}{
		"control":                 {0, 0, module.GatewayAnswer{}},
		"429, three of one user":  {1, 3, module.GatewayAnswer{Status: 429, RetryAfter: 10 * time.Minute}},
		"429, three of two users": {2, 3, module.GatewayAnswer{Status: 429, RetryAfter: 10 * time.Minute}},
		"502, three of two users": {2, 3, module.GatewayAnswer{Status: 502}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
					if isInnocent(s.pushkey) {
						return module.GatewayAnswer{Status: 200}, nil
					}
					return test.answer, nil
				})
				for u := range test.users {
					for p := range test.pushers {
						w.set(mxid.UserID(fmt.Sprintf("@attacker%d:h", u)), fmt.Sprintf("attack%d-%d", u, p), "gw")
					}
				}
				for i := range 10 {
					w.set(name2(i), key(i), "gw")
				}
				d, stop := w.host()
				defer stop()
				sentAt := map[string]time.Time{}
				for e := range 90 {
					for u := range test.users {
						w.notify(d, 1000+10*e+u, "!a:h", mxid.UserID(fmt.Sprintf("@attacker%d:h", u)))
					}
					if e%10 == 9 { // quiet between
						sentAt[fmt.Sprintf("$%d", e)] = time.Now()
						w.notify(d, e, "!r:h", name2(e/10))
					}
					time.Sleep(time.Second)
				}
				w.checkAges(sentAt, 9, 0)
			})
		})
	}
}

// Three users at three gateways that refuse connections cut a host off. It looks slowly,
// however much waits.
func TestAHostThatIsCutOffLooksSlowly(t *testing.T) {
	for name, test := range map[string]struct {
		status, calls int // calls of the queue in a second
	}{"control": {502, 40}, "cut off": {0, 40}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				refuse := func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
					if test.status == 0 {
						return noEgress{}.Post(ctx, "", nil)
					}
					return module.GatewayAnswer{Status: test.status}, nil
				}
				var users []mxid.UserID
				for i := range 60 {
					w.answer(fmt.Sprint("gw", i%3), refuse)
					w.set(name2(i), key(i), fmt.Sprint("gw", i%3))
					users = append(users, name2(i))
				}
				d, stop := w.host()
				defer stop()
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

// A full Redis refuses what the look for due backlogs writes.
func TestLateGrowsWhileLooksFail(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		w.answer("gw", always(502))
		d, stop := w.host()
		defer stop()
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
	for name, delay := range map[string]time.Duration{"control": 50 * time.Millisecond, "slow": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("gw", slow(delay, 200))
				for i := range 100 {
					w.set(name2(i), key(i), "gw")
				}
				d, stop := w.host()
				defer stop()
				sentAt := map[string]time.Time{}
				for e := range 600 {
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, "!r:h", name2(e%100))
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(5 * time.Second)
				w.checkAges(sentAt, 600, 2500*time.Millisecond)
			})
		})
	}
}

// Requests for 16 pushkeys of each attacker hang at a gateway that others share.
func TestHangingPushersOfFewUsersDelayNoOthers(t *testing.T) {
	for name, attackers := range map[string]int{"control": 0, "two users": 2, "twenty users": 20} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				hangs := slow(time.Hour, 200)
				w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
					if isInnocent(s.pushkey) {
						time.Sleep(20 * time.Millisecond)
						return module.GatewayAnswer{Status: 200}, nil
					}
					return hangs(ctx, s)
				})
				var users []mxid.UserID
				for u := range attackers {
					users = append(users, mxid.UserID(fmt.Sprintf("@attacker%d:h", u)))
					for p := range 16 {
						w.set(users[u], fmt.Sprintf("attack%d-%d", u, p), "gw")
					}
				}
				for i := range 50 {
					w.set(name2(i), key(i), "gw")
				}
				d, stop := w.host()
				defer stop()
				sentAt := map[string]time.Time{}
				const events = 1050
				for e := range events {
					if e%10 == 0 && attackers > 0 {
						w.notify(d, 10_000+e, "!a:h", users...)
					}
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, "!r:h", name2(e%50))
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(5 * time.Second)
				w.checkAges(sentAt, events, time.Second)
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
			inBubble(t, func(w *world) {
				hangs := slow(time.Hour, 200)
				w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
					if isInnocent(s.pushkey) {
						time.Sleep(20 * time.Millisecond)
						return module.GatewayAnswer{Status: 200}, nil
					}
					return hangs(ctx, s)
				})
				var users []mxid.UserID
				for u := range attackers {
					users = append(users, mxid.UserID(fmt.Sprintf("@attacker%d:h", u)))
					for p := range 4 {
						w.set(users[u], fmt.Sprintf("attack%d-%d", u, p), "gw")
					}
				}
				d, stop := w.host()
				defer stop()
				w.set(name2(99), key(99), "gw")
				w.notify(d, 19_999, "!k:h", name2(99))
				time.Sleep(time.Second)
				for e := range int(test.lead / time.Second) {
					w.notify(d, 20_000+e, "!k:h", append(users, name2(99))...)
					time.Sleep(time.Second)
				}
				sentAt := map[string]time.Time{}
				const events = 60 // the first of each user
				for e := range events {
					w.set(name2(e), key(e), "gw")
					if e%10 == 0 && attackers > 0 {
						w.notify(d, 10_000+e, "!a:h", users...)
					}
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, "!r:h", name2(e))
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(20 * time.Second)
				w.checkAges(sentAt, events, test.atMost)
			})
		})
	}
}

// slowExpansion is a queue where each part of a large event takes a while.
type slowExpansion struct {
	module.DeliveryQueue
	takes time.Duration
}

func (q slowExpansion) Enqueue(ctx context.Context, batches []module.DeliveryBatch) []module.Result[module.Enqueued] {
	if batches[0].Of.Token != 0 {
		time.Sleep(q.takes)
	}
	return q.DeliveryQueue.Enqueue(ctx, batches)
}

// Messages go to rooms with many members, in the shard of other users.
func TestLargeEventsDelayNoOtherRooms(t *testing.T) {
	for name, events := range map[string]int{"control": 0, "large events": 21} {
		t.Run(name, func(t *testing.T) {
			withReader(t, func(w *world, r *reader) {
				w.cfg.Shards = 1
				var members []mxid.UserID
				for i := range 500 {
					members = append(members, mxid.UserID(fmt.Sprintf("@member%d:h", i)))
				}
				for i := range 20 {
					w.set(name2(i), key(i), "gw")
					members = append(members, name2(i)) // also in the large rooms
				}
				d, stop := w.hostOn(slowExpansion{w.queue, 800 * time.Millisecond}, w)
				defer stop()
				for e := range events {
					w.notify(d, 10_000+e, fmt.Sprintf("!large%d:h", e%3), members...)
				}
				sentAt := map[string]time.Time{}
				for e := range 100 {
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, fmt.Sprintf("!direct%d:h", e%20), name2(e%20))
					time.Sleep(100 * time.Millisecond)
				}
				w.checkAges(sentAt, 100, time.Second)
				before := len(w.all())
				if err := d.UpdateBadges(t.Context(), "@own3:h"); err != nil {
					t.Fatal(err)
				}
				r.set("@own3:h", 7)
				w.wait(5*time.Second, func() bool {
					for _, s := range w.all()[before:] {
						if s.pushkey == key(3) && s.counts != nil && s.counts.Unread == 7 {
							return true
						}
					}
					return false
				})
			})
		})
	}
}

// A sender of one message to many large rooms delays another sender's by a step.
func TestManyLargeRoomsOfASenderDelayNoOthers(t *testing.T) {
	for name, test := range map[string]struct {
		senders int
		isLate  bool
	}{"none": {0, false}, "one sender": {1, false}, "the control, a sender each": {160, true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.cfg.Shards, w.cfg.Content = 1, NoNames // stores little
				var members []mxid.UserID
				for i := range 60 {
					members = append(members, mxid.UserID(fmt.Sprintf("@member%d:h", i)))
				}
				w.set("@last:h", "key", "gw")
				d, stop := w.hostOn(slowExpansion{w.queue, 100 * time.Millisecond}, w)
				defer stop()
				send := func(n int, sender string, members []mxid.UserID) {
					event := fmt.Sprintf(`{"event_id":"$%d","room_id":"!large%d:h","sender":%q,"type":"m.room.message","content":{}}`, n, n, sender)
					if err := w.send(d, module.Event{JSON: event}, members...); err != nil {
						t.Fatal(err)
					}
				}
				if test.senders > 0 {
					for n := range 160 {
						send(1000+n, fmt.Sprintf("@sender%d:h", n%test.senders), members)
					}
				}
				at := time.Now()
				send(1, "@other:h", append(members, "@last:h"))
				w.wait(20*time.Second, func() bool { return len(w.got("key")) == 1 })
				if took := time.Since(at); (took > time.Second) != test.isLate {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// Rooms are expanded one after the other, however many events of one wait.
func TestRoomsAreExpandedInTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 1
		var members []mxid.UserID
		for i := range 500 {
			members = append(members, mxid.UserID(fmt.Sprintf("@member%d:h", i)))
		}
		w.set("@last:h", "key", "gw")
		members = append(members, "@last:h")
		d, stop := w.hostOn(slowExpansion{w.queue, time.Second}, w)
		defer stop()
		for e := range 20 {
			w.notify(d, 1000+e, "!busy:h", members[:500]...)
		}
		for room := range 20 {
			w.notify(d, 2000+room, fmt.Sprintf("!other%d:h", room), members[:500]...)
		}
		at := time.Now()
		w.notify(d, 1, "!quiet:h", members...)
		w.wait(20*time.Second, func() bool { return len(w.got("key")) == 1 })
		if took := time.Since(at); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
