package delivery

import (
	"cmp"
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
	n := 0
	return func(context.Context, sent) (module.GatewayAnswer, error) {
		status := all[min(n, len(all)-1)]
		n++
		return module.GatewayAnswer{Status: status}, nil
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
	for name, test := range map[string]struct {
		answers  []int
		attempts int
		dropped  DropReason // empty if it is delivered
		most     time.Duration
	}{
		"200":                  {[]int{200}, 1, "", 0},
		"202":                  {[]int{202}, 1, "", 0},
		"204":                  {[]int{204}, 1, "", 0},
		"302 is no success":    {[]int{302, 200}, 2, "", 2 * time.Second},
		"502":                  {[]int{502, 502, 502, 200}, 4, "", 10 * time.Second},
		"429 without a time":   {[]int{429, 200}, 2, "", 2 * time.Second},
		"507":                  {[]int{507, 507, 200}, 3, "", 5 * time.Second},
		"400 for the content":  {[]int{400, 200}, 2, "", 0},
		"413 for all":          {[]int{413, 413}, 2, DropRefused, 0},
		"500 for a long while": {append(slices.Repeat([]int{500}, 20), 200), 21, "", 6 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.set(name1, "key", "gw")
				w.answer("gw", statuses(test.answers...))
				d, stop := w.host()
				defer stop()
				time.Sleep(lookGap) // the host has looked once
				w.notify(d, 1, "!r:h", name1)
				w.wait(test.most+lookGap, func() bool { return w.queue.Waiting() == 0 }) // the host may have just looked
				all := w.all()
				if len(all) != test.attempts {
					t.Errorf("sent %d times, want %d", len(all), test.attempts)
				}
				if test.dropped != "" && w.drops(test.dropped) != 1 || test.dropped == "" && len(w.delivered("key")) != 1 {
					t.Errorf("delivered %d, dropped %v", len(w.delivered("key")), w.dropped)
				}
				if test.answers[0] == 400 && (all[0].idOnly || !all[1].idOnly) {
					t.Error("it is not sent as event_id_only")
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
		d, stop := w.host()
		defer stop()
		other, stopOther := w.host()
		defer stopOther()
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

func TestRepeatingNotifyDoublesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		d, stop := w.host()
		other, stopOther := w.host()
		defer stopOther()
		for range 3 {
			w.notify(d, 1, "!r:h", name1)
			w.notify(other, 1, "!r:h", name1)
			time.Sleep(4 * time.Minute)
		}
		stop()
		w.notify(other, 1, "!r:h", name1)
		time.Sleep(time.Minute)
		w.want("key", 1)
	})
}

func TestOtherHostsSendTheClaimsOfADeadHost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		w.answer("gw", slow(500*time.Millisecond, 200))
		dying, kill := w.mortalHost()
		d, stop := w.host()
		defer stop()
		for e := range 3 {
			w.notify(dying, e, "!r:h", name1)
		}
		time.Sleep(200 * time.Millisecond)
		kill()
		w.notify(d, 3, "!r:h", name1)
		if took := w.wait(9*time.Second, func() bool { return w.queue.Waiting() == 0 }); took > 6*time.Second+4*500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		var got []string
		for _, s := range w.delivered("key") {
			if !slices.Contains(got, s.event) {
				got = append(got, s.event)
			}
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
		d, stop := w.host()
		other, stopOther := w.host()
		defer stopOther()
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

// ages returns the delays of the first arrivals at pushers, sorted.
func (w *world) ages(sentAt map[string]time.Time, isOf func(pushkey string) bool) (ages []time.Duration) {
	seen := map[string]bool{}
	for _, s := range w.all() {
		if _, isTimed := sentAt[s.event]; !isTimed {
			continue
		}
		if id := s.pushkey + s.event; isOf(s.pushkey) && s.status == 200 && !seen[id] {
			seen[id] = true
			ages = append(ages, s.began.Sub(sentAt[s.event]))
		}
	}
	slices.Sort(ages)
	return ages
}

// The gateway of one account answers after 4.9 s.
func TestASlowAccountDelaysNoOtherAccount(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 1
		w.answer("slow", slow(4900*time.Millisecond, 200))
		for p := range 30 {
			w.set("@attacker:h", fmt.Sprint("slow", p), "slow")
		}
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		sentAt := map[string]time.Time{}
		for e := range 300 {
			sentAt[fmt.Sprintf("$%d", e)] = time.Now()
			w.notify(d, e, "!r:h", "@attacker:h", name1)
			time.Sleep(100 * time.Millisecond)
		}
		w.wait(time.Second, func() bool { return len(w.delivered("key")) == 300 })
		ages := w.ages(sentAt, func(pushkey string) bool { return pushkey == "key" })
		if latest := ages[len(ages)-1]; latest > time.Second {
			t.Errorf("the latest is %v late", latest)
		}
	})
}

// Ten accounts have a hundred pushers each, at different gateways that answer after
// 0.9 s.
func TestTenAttackersDelayNoOtherAccount(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 4
		var members []mxid.UserID
		for a := range 10 {
			user := mxid.UserID(fmt.Sprintf("@attacker%d:h", a))
			members = append(members, user)
			for p := range 100 {
				gateway := fmt.Sprintf("gw%d-%d.attack", a, p)
				w.answer(gateway, slow(900*time.Millisecond, 200))
				w.set(user, fmt.Sprintf("attack%d-%d", a, p), gateway)
			}
		}
		for i := range 20 {
			members = append(members, name(i))
			w.set(name(i), key(i), "gw")
		}
		d, stop := w.host()
		defer stop()
		sentAt := map[string]time.Time{}
		const events = 60
		for e := range events {
			sentAt[fmt.Sprintf("$%d", e)] = time.Now()
			w.notify(d, e, "!r:h", members...)
			time.Sleep(500 * time.Millisecond)
		}
		isOthers := func(pushkey string) bool { return strings.HasPrefix(pushkey, "key") }
		w.wait(5*time.Second, func() bool { return len(w.ages(sentAt, isOthers)) == 20*events })
		ages := w.ages(sentAt, isOthers)
		if p99 := ages[len(ages)*99/100]; p99 > 250*time.Millisecond || ages[len(ages)-1] > time.Second {
			t.Errorf("p99 is %v, the latest %v", p99, ages[len(ages)-1])
		}
	})
}

// Two gateways are down during the burst.
func TestABurstOfOneAccountDropsNoNotificationOfOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 1
		w.answer("away", statuses(502))
		w.answer("burst", statuses(502))
		for i := range 10 {
			w.set(name(i), key(i), "away")
		}
		for p := range 20 {
			w.set("@attacker:h", fmt.Sprint("burst", p), "burst")
		}
		d, stop := w.host()
		defer stop()
		for i := range 10 {
			w.notify(d, i, "!r:h", name(i))
		}
		large := strings.Repeat("x", 6000)
		for e := range 400 {
			ev := module.Event{JSON: fmt.Sprintf(
				`{"event_id":"$b%d","room_id":"!b:h","type":"m.room.message","sender":"@s:h","content":{"body":"%s"}}`, e, large)}
			if err := w.send(d, ev, "@attacker:h"); err != nil {
				t.Fatal(err)
			}
		}
		if texts := w.queue.TextBytes(); texts > w.cfg.MaxUserBytes+40*8<<10 {
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
		w.answer("gw", statuses(502))
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		ev := module.Event{JSON: fmt.Sprintf(
			`{"event_id":"$b","room_id":"!b:h","type":"m.room.message","sender":"@s:h","content":{"body":"%s"}}`, strings.Repeat("x", 60_000))}
		if err := w.send(d, ev, name1); err != nil {
			t.Fatal(err)
		}
		if texts := w.queue.TextBytes(); texts > w.cfg.MaxNotificationBytes {
			t.Errorf("%d bytes are kept", texts)
		}
	})
}

func TestAFailingAppDoesNotDelayAnotherAppOfTheGateway(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
			if strings.HasPrefix(s.pushkey, "ill") {
				return module.GatewayAnswer{Status: 502}, nil
			}
			return module.GatewayAnswer{Status: 200}, nil
		})
		var members []mxid.UserID
		for i := range 10 {
			members = append(members, name(i))
			w.setApp(name(i), "well", fmt.Sprint("well", i), "gw")
			w.setApp(name(i), "ill", fmt.Sprint("ill", i), "gw")
		}
		d, stop := w.host()
		defer stop()
		sentAt := map[string]time.Time{}
		for e := range 90 {
			sentAt[fmt.Sprintf("$%d", e)] = time.Now()
			w.notify(d, e, "!r:h", members...)
			time.Sleep(time.Second)
		}
		isWell := func(pushkey string) bool { return strings.HasPrefix(pushkey, "well") }
		w.wait(3*time.Second, func() bool { return len(w.ages(sentAt, isWell)) == 900 })
		ages := w.ages(sentAt, isWell)
		if p99 := ages[len(ages)*99/100]; p99 > 2*time.Second {
			t.Errorf("p99 is %v", p99)
		}
	})
}

// A gateway is down for 45 s, with 205 events in busy rooms.
func TestImportantNotificationsSurviveALongOutage(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", statuses(502))
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		send := func(id, room, kind, more string) {
			t.Helper()
			if err := w.send(d, module.Event{JSON: fmt.Sprintf(
				`{"event_id":"%s","room_id":"%s","type":"%s","sender":"@s:h",%s}`, id, room, kind, more)}, name1); err != nil {
				t.Fatal(err)
			}
		}
		for e := range 205 {
			switch e {
			case 20:
				send("$invite", "!new:h", "m.room.member", `"state_key":"@one:h","content":{"membership":"invite"}`)
			case 30:
				send("$mention", "!busy1:h", "m.room.message", `"content":{"body":"x","m.mentions":{"user_ids":["@one:h"]}}`)
			default:
				send(fmt.Sprintf("$%d", e), fmt.Sprintf("!busy%d:h", e%3), "m.room.message", `"content":{"body":"x"}`)
			}
			time.Sleep(45 * time.Second / 205)
		}
		w.answer("gw", always(200))
		w.wait(40*time.Second, func() bool { return w.queue.Waiting() == 0 })
		got := map[string]bool{}
		for _, s := range w.delivered("key") {
			got[s.event] = true
		}
		if !got["$invite"] || !got["$mention"] || len(got) < 95 {
			t.Errorf("%d came, the invite %v, the mention %v", len(got), got["$invite"], got["$mention"])
		}
	})
}

func TestAHostWithoutEgressLeavesTheWorkToOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		for i := range 60 {
			w.set(name(i), key(i), fmt.Sprint("gw", i%6))
		}
		cut, stop := w.hostOn(w.queue, noEgress{})
		defer stop()
		_, stopOther := w.host()
		defer stopOther()
		sentAt, saysSo := map[string]time.Time{}, false
		for e := range 120 {
			sentAt[fmt.Sprintf("$%d", e)] = time.Now()
			w.notify(cut, e, "!r:h", name(e%60))
			time.Sleep(500 * time.Millisecond)
			saysSo = saysSo || cut.Stats().CutOff
		}
		all := func(string) bool { return true }
		w.wait(time.Minute, func() bool { return len(w.ages(sentAt, all)) == 120 })
		ages := w.ages(sentAt, all)
		if median := ages[len(ages)/2]; median > 5*time.Second {
			t.Errorf("the median is %v", median)
		}
		if !saysSo {
			t.Error("the host does not say that it reaches no gateway")
		}
	})
}

type noEgress struct{}

func (noEgress) Post(context.Context, string, []byte) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{}, &net.OpError{Op: "dial", Err: errors.New("network is unreachable")}
}

func TestPushersAreReadAtNotifyAndBeforeSending(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.host()
		defer stop()
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
		d, stop := w.host()
		defer stop()
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
		d, stop := w.host()
		defer stop()
		shard := ShardOf(name1, w.cfg.Shards)
		bad := module.Notification{ID: "garbled000000000", Priority: module.HighPriority, Room: "room0000", Meta: "\xff{"}
		w.queue.Enqueue(t.Context(), []module.DeliveryBatch{{
			Shard: shard, Key: "x", Window: time.Minute, MaxBacklog: 100, MaxUserBytes: 1000,
			Additions: []module.Addition{{Target: PusherID(name1, pusher.Key{AppID: "app", Pushkey: "key"}), User: "user0000", Notification: bad}},
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
		w.cfg.Shards = 1
		const users = 1700
		var members []mxid.UserID
		for i := range users {
			members = append(members, name(i))
			w.set(name(i), key(i), "gw")
		}
		d, stop := w.host()
		defer stop()
		other, stopOther := w.host()
		defer stopOther()
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

// The gateway answers 502 for one notification, whatever its form. It is dropped after eight attempts as event_id_only.
func TestANotificationThatAlwaysFailsIsDropped(t *testing.T) {
	const within = 8 * time.Minute
	for name, test := range map[string]struct {
		rooms  []string // of the notifications 1 to 4
		before int      // attempts until a later notification is sent
		all    int      // attempts until it is dropped
	}{
		"another room":  {[]string{"!r:h", "!o:h", "!o:h", "!r:h"}, 8, 24},
		"the same room": {[]string{"!r:h", "!r:h", "!r:h", "!r:h"}, 24, 32},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
					if s.event == "$1" {
						return module.GatewayAnswer{Status: 502}, nil
					}
					return module.GatewayAnswer{Status: 200}, nil
				})
				w.set(name1, "key", "gw")
				d, stop := w.host()
				defer stop()
				for n, room := range test.rooms {
					w.notify(d, n+1, room, name1)
				}
				w.wait(within, func() bool { return len(w.delivered("key")) >= 2 })
				// Another notification must come while the first one fails.
				for e := 0; w.queue.Waiting() > 0 && e < 100; e++ {
					w.notify(d, 100+e, "!o:h", name1)
					time.Sleep(10 * time.Second)
				}
				w.wait(time.Second, func() bool { return w.queue.Waiting() == 0 })
				var got []string
				var before, all, idOnly int
				for _, s := range w.all() {
					if s.event == "$1" {
						all++
						if s.idOnly {
							idOnly++
						}
					} else if len(s.event) == 2 {
						got = append(got, s.event)
						before = cmp.Or(before, all)
					}
				}
				if fmt.Sprint(got) != "[$2 $3 $4]" || w.drops(DropRefused) != 1 {
					t.Errorf("got %v, dropped %v", got, w.dropped)
				}
				if before != test.before || all != test.all || idOnly != 8 {
					t.Errorf("%d attempts before another notification, and %d in all, %d of them as event_id_only", before, all, idOnly)
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
	for name, answer := range map[string]func(began time.Time, random *rand.Rand) int{
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
		t.Run(name, func(t *testing.T) {
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
					users = append(users, name2(i))
					w.set(users[i+1], fmt.Sprint("own", i), "gw")
				}
				w.cfg.MaxBacklog = 1000
				d, stop := w.host()
				defer stop()
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

func name2(i int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@own%d:h", i)) }

// ntfy answers 507 while no app listens at the pushkey.
func TestABusyPusherKeepsOrderAndContent(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", statuses(append(slices.Repeat([]int{507}, 8), 200)...))
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		w.notify(d, 1, "!r:h", name1)
		w.notify(d, 2, "!r:h", name1)
		w.wait(10*time.Minute, func() bool { return w.queue.Waiting() == 0 })
		all := w.delivered("key")
		if len(all) != 2 || all[0].event != "$1" || all[1].event != "$2" {
			t.Fatalf("got %v", all)
		}
		if all[0].idOnly {
			t.Error("the first notification has lost its content")
		}
	})
}

func TestASinglePusherLosesNothingInAnOutage(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", always(502))
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		for e := range 5 {
			w.notify(d, e, "!r:h", name1)
		}
		time.Sleep(30 * time.Minute)
		w.answer("gw", always(200))
		w.wait(20*time.Second, func() bool { return w.queue.Waiting() == 0 })
		if n := len(w.delivered("key")); n != 5 {
			t.Errorf("%d came", n)
		}
	})
}

// Notify takes turns for backlogs that it may not get. Such a turn may be the probe of a
// closed gate.
func TestAClosedGateOpensWhileEventsContinue(t *testing.T) {
	inBubble(t, func(w *world) {
		var users []mxid.UserID
		for n := range 50 {
			user := mxid.UserID(fmt.Sprintf("@user%d:h", n))
			w.set(user, fmt.Sprint("key", n), "gw")
			users = append(users, user)
		}
		w.answer("gw", always(502))
		d, stop := w.host()
		defer stop()
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
		d, stop := w.host()
		defer stop()
		w.notify(d, 1, "!r:h", name1)
		if err := w.send(d, module.Event{JSON: `{"event_id":"$call","room_id":"!r:h","type":"m.call.invite","sender":"@s:h","content":{"lifetime":30000}}`}, name1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24*time.Hour + 11*time.Minute)
		w.answer("gw", always(200))
		w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
		if len(w.delivered("key")) != 0 || w.drops(DropExpired) != 2 {
			t.Errorf("dropped %v", w.dropped)
		}
	})
}

func TestHeldGatewaysGetNoRequests(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		w.queue.Hold("https://gw:443", true)
		time.Sleep(2 * time.Second)
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(10 * time.Minute)
		w.want("key")
		w.queue.Hold("https://gw:443", false)
		w.wait(15*time.Second, func() bool { return w.queue.Waiting() == 0 })
		w.want("key", 1)
	})
}

func TestAnOutageOfTheQueueLosesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		w.answer("gw", slow(time.Second, 200))
		d, stop := w.host()
		defer stop()
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var lost atomic.Int64
		w.queue.Fail = func(operation string) error {
			if operation == "postpone" && lost.Add(1) <= 3 {
				return module.ErrFenced
			}
			return nil
		}
		w.answer("slow", slow(time.Second, 200))
		for n := range 25 {
			w.set("@a:x", fmt.Sprint("key", n), "slow")
		}
		d, stop := w.host()
		defer stop()
		w.notify(d, 1, "!r:x", "@a:x")
		w.wait(time.Minute, func() bool { return len(w.all()) == 25 })
		if lost.Load() == 0 {
			t.Error("no claim was lost")
		}
	})
}
