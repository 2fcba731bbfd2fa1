package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// statuses answers with one status after the other, then always with the last.
func statuses(all ...int) func(context.Context, sent) (module.GatewayAnswer, error) {
	var n atomic.Int64
	return func(context.Context, sent) (module.GatewayAnswer, error) {
		return module.GatewayAnswer{Status: all[min(int(n.Add(1)), len(all))-1]}, nil
	}
}

func slow(d time.Duration, status int) func(context.Context, sent) (module.GatewayAnswer, error) {
	return func(ctx context.Context, _ sent) (module.GatewayAnswer, error) {
		select {
		case <-time.After(d):
			return module.GatewayAnswer{Status: status}, nil
		case <-ctx.Done():
			return module.GatewayAnswer{}, ctx.Err()
		}
	}
}

// wait waits until enough returns true, and returns how long it took.
func (w *world) wait(most time.Duration, enough func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for synctest.Wait(); !enough(); synctest.Wait() {
		if time.Since(began) > most {
			w.t.Fatalf("not within %v", most)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(began)
}

func TestAnswers(t *testing.T) {
	for label, test := range map[string]struct {
		answers  []int
		attempts int
		dropped  DropReason // empty if it is delivered
		most     time.Duration
		idOnly   bool // as it is sent last
	}{
		"200":                  {[]int{200}, 1, "", 0, false},
		"202":                  {[]int{202}, 1, "", 0, false},
		"204":                  {[]int{204}, 1, "", 0, false},
		"302 is no success":    {[]int{302, 200}, 2, "", 2 * time.Second, false},
		"502":                  {[]int{502, 502, 502, 200}, 4, "", 10 * time.Second, false},
		"429 without a time":   {[]int{429, 200}, 2, "", 2 * time.Second, false},
		"507":                  {append(slices.Repeat([]int{507}, 8), 200), 9, "", 5 * time.Minute, false}, // ntfy, while no app listens
		"400 for the content":  {[]int{400, 200}, 2, "", 0, true},
		"413 for all":          {[]int{413, 413}, 2, DropRefused, 0, true},
		"500 for a long while": {append(slices.Repeat([]int{500}, 20), 200), 21, "", 6 * time.Minute, true},
	} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.set(name1, "key", "gw")
				w.answer("gw", statuses(test.answers...))
				d := w.host()
				w.notify(d, 1, "!r:h", name1) // while the host begins to look
				w.wait(test.most+lookGap, func() bool { return w.queue.Waiting() == 0 })
				all := w.all()
				if len(all) != test.attempts {
					t.Errorf("sent %d times, want %d", len(all), test.attempts)
				}
				if test.dropped != "" && w.drops(test.dropped) != 1 || test.dropped == "" && len(w.delivered("key")) != 1 {
					t.Errorf("delivered %d, dropped %v", len(w.delivered("key")), w.dropped)
				}
				if all[0].idOnly || all[len(all)-1].idOnly != test.idOnly {
					t.Errorf("as event_id_only: %v, then %v", all[0].idOnly, all[len(all)-1].idOnly)
				}
				time.Sleep(time.Hour)
				if len(w.all()) != test.attempts {
					t.Error("it is sent again")
				}
			})
		})
	}
}

const name1 mxid.UserID = "@one:h"

func TestOrderHoldsThroughFailures(t *testing.T) {
	inBubble(t, func(w *world) {
		random := rand.New(rand.NewPCG(1, 1))
		others := rand.New(rand.NewPCG(1, 2)) // for the gateway
		w.set(name1, "key", "gw")
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			time.Sleep(time.Duration(others.Int64N(int64(300 * time.Millisecond))))
			return module.GatewayAnswer{Status: []int{200, 502, 503}[others.IntN(3)]}, nil
		})
		d := w.host()
		other := w.host()
		for e := range 60 {
			w.notify([]*Delivery{d, other}[e%2], 100+e, "!r:h", name1)
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
		}
		w.wait(10*time.Minute, func() bool { return w.queue.Waiting() == 0 })
		for i, s := range w.delivered("key") {
			if want := fmt.Sprintf("$%d", 100+i); s.event != want {
				t.Fatalf("%d came as %s", 100+i, s.event)
			}
		}
		if n := len(w.delivered("key")); n != 60 || w.overlaps > 0 {
			t.Errorf("%d delivered, %d at the same time", n, w.overlaps)
		}
	})
}

func TestOtherHostsSendTheClaimsOfADeadHost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		w.answer("gw", slow(500*time.Millisecond, 200))
		w.cfg.DrainTimeout = 0
		dying, kill := w.hostOn(w.queue, w)
		for e := range 3 {
			w.notify(dying, e, "!r:h", name1)
		}
		time.Sleep(200 * time.Millisecond)
		w.fail(errors.New("killed"))
		kill()
		w.fail(nil)
		d := w.host()
		w.notify(d, 3, "!r:h", name1)
		if took := w.wait(9*time.Second, func() bool { return w.queue.Waiting() == 0 }); took > 6*time.Second+4*500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		var got []string
		for _, s := range w.delivered("key") {
			got = append(got, s.event)
		}
		if fmt.Sprint(got) != "[$0 $1 $2 $3]" {
			t.Errorf("got %v", got)
		}
	})
}

// A request hangs at a host that stops, and the first notification of each other user is under way there.
func TestAnOrderlyStopDelaysNothing(t *testing.T) {
	const took = 100 * time.Millisecond
	inBubble(t, func(w *world) {
		w.answer("hangs", slow(time.Hour, 200))
		w.answer("gw", slow(took, 200))
		w.set(name(0), key(0), "hangs")
		for i := 1; i < 20; i++ {
			w.set(name(i), key(i), "gw")
		}
		d, stop := w.hostOn(w.queue, w)
		other := w.host()
		w.notify(d, 0, "!r:h", name(0))
		for i := 1; i < 20; i++ {
			w.notify(d, 100+i, "!r:h", name(i))
		}
		synctest.Wait()
		stopped := make(chan struct{})
		began := time.Now()
		go func() { defer close(stopped); stop() }()
		time.Sleep(time.Millisecond)
		for i := 1; i < 20; i++ {
			w.notify([]*Delivery{d, other}[i%2], i, "!r:h", name(i))
		}
		w.wait(took+time.Second+took, func() bool { return w.queue.Waiting() == 1 }) // the other host looks each second
		<-stopped
		if took := time.Since(began); took > w.cfg.DrainTimeout+time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

// Two gateways are down during the burst.
func TestABurstOfOneAccountDropsNoNotificationOfOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("away", always(502))
		w.answer("burst", always(502))
		for i := range 10 {
			w.set(name(i), key(i), "away")
		}
		for p := range 20 {
			w.set("@attacker:h", fmt.Sprint("burst", p), "burst")
		}
		d := w.host()
		for i := range 10 {
			w.notify(d, i, "!r:h", name(i))
		}
		large := strings.Repeat("x", 6000)
		for e := range 400 {
			w.event(d, fmt.Sprintf(`{"event_id":"$b%d","room_id":"!b:h","type":"m.room.message","sender":"@s:h","content":{"body":"%s"}}`, e, large), "@attacker:h")
		}
		if texts := w.log("@attacker:h").Bytes; texts > w.cfg.MaxUserBytes+40*8<<10 {
			t.Errorf("%d bytes are kept", texts)
		}
		w.answer("away", always(200))
		w.wait(40*time.Second, func() bool {
			n := 0
			for i := range 10 {
				n += len(w.delivered(key(i)))
			}
			return n == 10
		})
		for _, s := range w.all() {
			if strings.HasPrefix(s.pushkey, "key") && s.idOnly {
				t.Error("another user's notification lost its text")
			}
		}
	})
}

func TestStoredNotificationsAreLimited(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", always(502))
		w.set(name1, "key", "gw")
		d := w.host()
		w.event(d, fmt.Sprintf(`{"event_id":"$b","room_id":"!b:h","type":"m.room.message","sender":"@s:h","content":{"body":"%s"}}`, strings.Repeat("x", 60_000)), name1)
		if texts := w.log(name1).Bytes; texts > w.cfg.MaxNotificationBytes {
			t.Errorf("%d bytes are kept", texts)
		}
	})
}

func TestAHostWithoutEgressLeavesTheWorkToOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		for i := range 60 {
			w.set(name(i), key(i), fmt.Sprint("gw", i%6))
		}
		cut, _ := w.hostOn(w.queue, noEgress{})
		w.host()
		sentAt, saysSo := map[string]time.Time{}, false
		for e := range 120 {
			sentAt[fmt.Sprintf("$%d", e)] = time.Now()
			w.notify(cut, e, "!r:h", name(e%60))
			time.Sleep(500 * time.Millisecond)
			saysSo = saysSo || cut.Stats().CutOff
		}
		w.wait(time.Minute, func() bool { return len(w.ages(sentAt)) == 120 })
		ages := w.ages(sentAt)
		if median := ages[len(ages)/2]; median > 5*time.Second {
			t.Errorf("the median is %v", median)
		}
		if !saysSo {
			t.Error("the host does not say that it reaches no gateway")
		}
	})
}

type noEgress struct{}

func (noEgress) Post(context.Context, module.GatewayRequest) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{}, &net.OpError{Op: "dial", Err: errors.New("network is unreachable")}
}

func TestPushersAreReadAtNotifyAndBeforeSending(t *testing.T) {
	inBubble(t, func(w *world) {
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		w.set(name1, "key", "gw")
		w.notify(d, 2, "!r:h", name1)
		synctest.Wait()
		w.want("key", 2)
		w.answer("gw", always(502))
		w.notify(d, 3, "!r:h", name1)
		synctest.Wait()
		w.unset(name1)
		w.answer("gw", always(200))
		time.Sleep(time.Minute)
		w.want("key", 2, 3)
		if w.drops(DropGone) != 1 || w.queue.Waiting() != 0 {
			t.Errorf("dropped %v", w.dropped)
		}
	})
}

func TestAPusherThatIsSetAgainEndsItsWait(t *testing.T) {
	inBubble(t, func(w *world) {
		n := 0
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			if n++; n == 1 {
				return module.GatewayAnswer{Status: 503, RetryAfter: time.Hour}, nil
			}
			return module.GatewayAnswer{Status: 200}, nil
		})
		w.set(name1, "key", "gw")
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(time.Minute)
		w.set(name1, "key", "gw")
		w.notify(d, 2, "!r:h", name1)
		w.wait(1100*time.Millisecond, func() bool { return w.queue.Waiting() == 0 })
		w.want("key", 1, 1, 2)
	})
}

func TestAnUnreadableNotificationIsDropped(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		w.set(name(1), key(1), "gw")
		d := w.host()
		id := PusherID(name1, pusher.Key{AppID: "app", Pushkey: "key"})
		w.queue.Append(t.Context(), []module.AppendRequest{{
			User: name1, Notification: module.Notification{ID: "garbled0", Priority: module.HighPriority, Room: "room0000", Meta: "\xff{"},
			Pushers: []module.Recipient{{Pusher: id, Gate: "https://gw:443 app"}}, MaxUserBytes: 1000,
		}})
		w.notify(d, 1, "!r:h", name1)
		w.notify(d, 2, "!r:h", name(1))
		w.wait(2*time.Second, func() bool { return w.queue.Waiting() == 0 })
		w.want("key", 1)
		w.want(key(1), 2)
		if w.drops(DropUnreadable) != 1 {
			t.Errorf("dropped %v", w.dropped)
		}
	})
}

func TestLargeEventsKeepTheOrder(t *testing.T) {
	inBubble(t, func(w *world) {
		const users = 1700
		var members []mxid.UserID
		for i := range users {
			members = append(members, name(i))
			w.set(name(i), key(i), "gw")
		}
		d := w.host()
		other := w.host()
		for e := range 3 {
			w.notify(d, 10*e, "!r:h", members...)
			w.notify(other, 10*e+1, "!r:h", name(5), name(1600))
			w.notify(d, 10*e, "!r:h", members...)
		}
		w.wait(30*time.Second, func() bool { return w.queue.Waiting() == 0 })
		for i := range users {
			if i == 5 || i == 1600 {
				w.want(key(i), 0, 1, 10, 11, 20, 21)
			} else if len(w.got(key(i))) != 3 {
				w.want(key(i), 0, 10, 20)
			}
		}
	})
}

// The gateway answers 502 for one notification, as long as it has more than its ids, or whatever its form. Later ones
// never overtake it.
func TestANotificationThatAlwaysFails(t *testing.T) {
	for label, test := range map[string]struct {
		acceptsIDs bool
		within     time.Duration
		got        string
	}{
		"but for its ids":      {true, 2 * time.Minute, "[$1 $2 $3 $4]"},
		"whatever is its form": {false, 24 * time.Hour, "[$4]"},
	} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
					if s.event == "$1" && !(s.idOnly && test.acceptsIDs) {
						return module.GatewayAnswer{Status: 502}, nil
					}
					return module.GatewayAnswer{Status: 200}, nil
				})
				w.set(name1, "key", "gw")
				d := w.host()
				w.notify(d, 1, "!r:h", name1)
				w.notify(d, 2, "!o:h", name1)
				w.notify(d, 3, "!o:h", name1)
				time.Sleep(time.Hour)
				w.notify(d, 4, "!o:h", name1)
				w.wait(test.within, func() bool { return w.queue.Waiting() == 0 })
				var got []string
				whole, idOnly := 0, 0
				for _, s := range w.all() {
					switch {
					case s.status == 200:
						got = append(got, s.event)
					case s.idOnly:
						idOnly++
					default:
						whole++
					}
				}
				if fmt.Sprint(got) != test.got || whole != 8 || test.acceptsIDs != (idOnly == 0) || w.drops(DropRefused) > 0 {
					t.Errorf("got %v after %d and %d failures, dropped %v", got, whole, idOnly, w.dropped)
				}
			})
		})
	}
}

// inRooms checks that the notifications of each room came in order.
func (w *world) inRooms(pushkey string, rooms int) {
	w.t.Helper()
	last := map[int]int{}
	for _, s := range w.delivered(pushkey) {
		var n int
		fmt.Sscanf(s.event, "$%d", &n)
		if n < last[n%rooms] {
			w.t.Errorf("%s: %s came after $%d", pushkey, s.event, last[n%rooms])
		}
		last[n%rooms] = n
	}
}

// The gateway is well for another user.
func TestAPusherWhoseOwnRouteFailsLosesNothing(t *testing.T) {
	const events, rooms = 200, 4
	for label, answer := range map[string]func(began time.Time, random *rand.Rand) int{
		"always 200": func(time.Time, *rand.Rand) int { return 200 },
		"502 for 94 s": func(began time.Time, _ *rand.Rand) int {
			if since := time.Since(began); since > 10*time.Second && since < 104*time.Second {
				return 502
			}
			return 200
		},
		"70 % are 502": func(_ time.Time, random *rand.Rand) int {
			if random.Float64() < 0.7 {
				return 502
			}
			return 200
		},
	} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				const pushers = 5
				began, randoms := time.Now(), map[string]*rand.Rand{} // one each, so that the order of pushers does not matter
				for i := range pushers {
					randoms[fmt.Sprint("own", i)] = rand.New(rand.NewPCG(1, uint64(i)))
				}
				w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
					if random, isOwn := randoms[s.pushkey]; isOwn {
						return module.GatewayAnswer{Status: answer(began, random)}, nil
					}
					return module.GatewayAnswer{Status: 200}, nil
				})
				users := []mxid.UserID{"@other:h"}
				w.set(users[0], "other", "gw")
				for i := range pushers {
					users = append(users, name(i))
					w.set(users[i+1], fmt.Sprint("own", i), "gw")
				}
				w.cfg.MaxBacklog = 1000
				d := w.host()
				for e := range events {
					w.notify(d, e, fmt.Sprintf("!r%d:h", e%rooms), users...)
					time.Sleep(800 * time.Millisecond)
				}
				w.wait(2*time.Hour, func() bool { return w.queue.Waiting() == 0 })
				for i := range pushers {
					key := fmt.Sprint("own", i)
					if n := len(w.delivered(key)); n != events {
						t.Errorf("%s: %d of %d came", key, n, events)
					}
					w.inRooms(key, rooms)
				}
				if w.drops(DropRefused) > 0 {
					t.Errorf("dropped %v", w.dropped)
				}
			})
		})
	}
}

// However many notifications are added at a closed gate, looks probe it.
func TestAClosedGateOpensWhileEventsContinue(t *testing.T) {
	inBubble(t, func(w *world) {
		var users []mxid.UserID
		for n := range 50 {
			user := mxid.UserID(fmt.Sprintf("@user%d:h", n))
			w.set(user, fmt.Sprint("key", n), "gw")
			users = append(users, user)
		}
		w.answer("gw", always(502))
		d := w.host()
		events := 0
		notify := func(d2 time.Duration) {
			for end := time.Now().Add(d2); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				w.notify(d, events, "!r:h", users[events%len(users)])
				events++
			}
		}
		notify(time.Minute)
		w.answer("gw", always(200))
		notify(20 * time.Second)
		if n := len(w.delivered("key0")); n < 50 {
			t.Errorf("20 s after the gateway is back, %d notifications have come, want all 80", n)
		}
	})
}

func TestExpiredNotificationsAreDropped(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", always(502))
		w.set(name1, "key", "gw")
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		w.event(d, `{"event_id":"$call","room_id":"!r:h","type":"m.call.invite","sender":"@s:h","content":{"lifetime":30000}}`, name1)
		time.Sleep(24*time.Hour + 11*time.Minute)
		w.answer("gw", always(200))
		w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
		if len(w.delivered("key")) != 0 || w.drops(DropExpired) != 2 {
			t.Errorf("dropped %v", w.dropped)
		}
	})
}

func TestAnOutageOfTheQueueLosesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		w.answer("gw", slow(time.Second, 200))
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		w.notify(d, 2, "!r:h", name1)
		time.Sleep(500 * time.Millisecond)
		w.fail(errors.New("away"))
		time.Sleep(20 * time.Second)
		w.fail(nil)
		w.wait(10*time.Second, func() bool { return w.queue.Waiting() == 0 })
		w.want("key", 1, 2)
	})
}

// A user has four requests in flight, and 16 that wait, so further pushers have no turn. The
// host loses its claim before it can release it.
func TestALostClaimWithoutATurnDoesNoHarm(t *testing.T) {
	inBubble(t, func(w *world) {
		var lost atomic.Int64
		w.queue.Fail = func(operation string, _ mxid.UserID) error {
			if operation == "postpone" && lost.Add(1) <= 3 {
				return module.ErrFenced
			}
			return nil
		}
		w.answer("slow", slow(1900*time.Millisecond, 200))
		for n := range 25 {
			w.set("@a:x", fmt.Sprint("key", n), "slow")
		}
		d := w.host()
		synctest.Wait()
		w.notify(d, 1, "!r:x", "@a:x")
		w.wait(time.Minute, func() bool { return len(w.all()) == 25 })
		if lost.Load() == 0 {
			t.Error("no claim was lost")
		}
	})
}
