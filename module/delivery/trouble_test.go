package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// started starts a host and waits until it has its shards.
func (w *world) started() (d *Delivery, stop func()) {
	w.t.Helper()
	d, stop = w.host()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if owned := d.Stats().ShardsOwned; owned != w.cfg.Shards {
		w.t.Fatalf("the host owns %d of %d shards", owned, w.cfg.Shards)
	}
	return d, stop
}

// script is a gateway that answers one thing after the other, the last one for
// ever.
func script(answers ...module.GatewayAnswer) func(context.Context, sent) (module.GatewayAnswer, error) {
	var mu sync.Mutex
	return func(context.Context, sent) (module.GatewayAnswer, error) {
		mu.Lock()
		defer mu.Unlock()
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		return answer, nil
	}
}

func status(code int) module.GatewayAnswer { return module.GatewayAnswer{Status: code} }

// hangs is a gateway that never answers.
func hangs(ctx context.Context, _ sent) (module.GatewayAnswer, error) {
	<-ctx.Done()
	return module.GatewayAnswer{}, ctx.Err()
}

func TestAfterAFailureItIsTriedAgainWithinASecond(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", script(status(502), status(200)))
		w.notify(d, 1, "!r:h", name(1))
		time.Sleep(time.Second + time.Millisecond)
		if got := fmt.Sprint(w.got(key(1))); got != "[$1 $1]" {
			t.Errorf("got %s", got)
		}
		synctest.Wait()
		if entries, held := w.queue.counts(); entries != 0 || held != 0 {
			t.Errorf("%d entries and %d held pushers are left", entries, held)
		}
	})
}

// The pusher whose first notification is never taken stops nobody, itself
// included.
func TestANotificationThatIsNeverTakenIsSentSlimAndSkipped(t *testing.T) {
	for answer, tries := range map[int]int{400: 2, 413: 2, 422: 2, 502: poisonAttempts + 1} {
		inBubble(t, func(w *world) {
			d, stop := w.started()
			defer stop()
			w.users(2, "gw")
			w.answer("gw", poison("$1", key(0), status(answer)))
			for e := range 3 {
				w.notify(d, e+1, "!r:h", name(0))
			}
			for e := range 3600 { // others are delivered
				w.notify(d, 100+e, "!r:h", name(1))
				time.Sleep(time.Second)
			}
			all, slim := w.tries("$1", key(0))
			if all < tries || all > tries+4 || slim != 1 { // before some of them no other came
				t.Errorf("%d: sent %d times, and %d of them slim", answer, all, slim)
			}
			if got := w.got(key(0)); !slices.Equal(got[all:], []string{"$2", "$3"}) {
				t.Errorf("%d: got %v", answer, got)
			}
			if got := w.drops(DropRefused); got != 1 {
				t.Errorf("%d: %d are refused", answer, got)
			}
		})
	}
}

// poison is a gateway that never takes an event, of one pusher or of all.
func poison(event, pushkey string, answer module.GatewayAnswer) func(context.Context, sent) (module.GatewayAnswer, error) {
	return func(_ context.Context, s sent) (module.GatewayAnswer, error) {
		if s.event == event && (pushkey == "" || s.pushkey == pushkey) {
			return answer, nil
		}
		return status(200), nil
	}
}

// tries is how often an event was sent to a pusher, and how often of those slim.
func (w *world) tries(event, pushkey string) (all, slim int) {
	for _, p := range w.all() {
		if p.event == event && p.pushkey == pushkey {
			if all++; p.slim {
				slim++
			}
		}
	}
	return all, slim
}

// Nobody else is sent anything that tells whether it is the notification or the
// gateway.
func TestANotificationThatIsNeverTakenStopsNoPusherThatIsAlone(t *testing.T) {
	for pushers, within := range map[int]time.Duration{1: 3 * time.Minute, 2: 3 * time.Minute, 30: time.Minute, 1000: time.Minute} {
		inBubble(t, func(w *world) {
			d, stop := w.started()
			defer stop()
			users := w.users(pushers, "gw")
			w.answer("gw", poison("$1", "", status(502)))
			for e := range 4 {
				w.notify(d, e+1, fmt.Sprintf("!%d:h", e), users...)
			}
			time.Sleep(within)
			for i := range users {
				var taken []string
				for _, p := range w.all() {
					if p.pushkey == key(i) && p.status == 200 {
						taken = append(taken, p.event)
					}
				}
				if !slices.Equal(taken, []string{"$2", "$3", "$4"}) {
					t.Errorf("%d pushers: pusher %d got %v", pushers, i, taken)
				}
			}
			if got := w.drops(DropRefused); got != pushers {
				t.Errorf("%d pushers: %d are refused", pushers, got)
			}
		})
	}
}

// Whatever is never taken from a thousand pushers, it does not close the gateway for
// one that is sent something else.
func TestANotificationThatIsNeverTakenStopsNoOtherPusher(t *testing.T) {
	for answer, within := range map[int]time.Duration{500: time.Minute, 503: 3 * time.Minute} {
		inBubble(t, func(w *world) {
			const pushers = 1000
			d, stop := w.started()
			defer stop()
			users := w.users(pushers, "gw")
			w.set("@other:h", "other", "gw")
			w.answer("gw", poison("$1", "", status(answer)))
			for e := range 2 {
				w.notify(d, e+1, fmt.Sprintf("!%d:h", e), users...)
			}
			for e := range within / time.Second {
				w.notify(d, 100+int(e), "!r:h", "@other:h")
				time.Sleep(time.Second)
			}
			if got := w.served("$2"); got != pushers || w.drops(DropRefused) != pushers {
				t.Errorf("%d: %d pushers got the second, and %d are refused", answer, got, w.drops(DropRefused))
			}
			at := w.all()[0].began
			for _, p := range w.all() {
				if p.pushkey == "other" {
					if late := p.at.Sub(at); late > 2*longestProbe {
						t.Errorf("%d: the other pusher got nothing for %v", answer, late)
					}
					at = p.at
				}
			}
		})
	}
}

// An outage is not taken for poison, however the gateway fails and long it lasts.
func TestAnOutageSkipsNothing(t *testing.T) {
	for _, pushers := range []int{1, 2, 30} {
		for how, outage := range map[string]func(context.Context, sent) (module.GatewayAnswer, error){
			"answered": always(502), "unavailable": always(503), "refused": func(context.Context, sent) (module.GatewayAnswer, error) {
				return module.GatewayAnswer{}, errors.New("connection refused")
			},
		} {
			inBubble(t, func(w *world) {
				d, stop := w.started()
				defer stop()
				users := w.users(pushers, "gw")
				w.answer("gw", outage)
				for e := range 3 {
					w.notify(d, e+1, "!r:h", users...)
				}
				time.Sleep(time.Hour)
				w.answer("gw", always(200))
				before := len(w.all())
				if tried, _ := w.tries("$2", key(0)); tried > 0 && how != "answered" {
					t.Errorf("%s, %d pushers: the second one was tried", how, pushers)
				}
				time.Sleep(20 * time.Second)
				got := map[string][]string{}
				for _, p := range w.all()[before:] {
					if p.status == 200 {
						got[p.pushkey] = append(got[p.pushkey], p.event)
					}
				}
				for i := range users {
					if !slices.Equal(got[key(i)], []string{"$1", "$2", "$3"}) {
						t.Errorf("%s, %d pushers: pusher %d got %v", how, pushers, i, got[key(i)])
					}
				}
				if got := w.drops(DropRefused); got > 0 {
					t.Errorf("%s, %d pushers: %d are refused", how, pushers, got)
				}
			})
		}
	}
}

func TestWhatIsKeptOfAPusherInTrouble(t *testing.T) {
	for trouble, want := range map[time.Duration]string{
		10 * time.Second: fmt.Sprint(events(0, 40)), time.Minute: "[$15 $21 $22 $23 $29 $30 $31 $37 $38 $39]",
	} {
		inBubble(t, func(w *world) {
			d, stop := w.started()
			w.set(name(1), key(1), "gw")
			w.answer("gw", always(502))
			for e := range 40 {
				w.notify(d, e, fmt.Sprintf("!%d:h", e/8), name(1))
			}
			time.Sleep(trouble)
			synctest.Wait()
			if entries, held := w.queue.counts(); entries != 0 || held != 1 {
				t.Errorf("%d entries and %d held pushers", entries, held)
			}
			stop() // and another host takes over
			d, stop = w.host()
			defer stop()
			time.Sleep(2 * time.Second)
			w.answer("gw", always(200))
			tries := len(w.all())
			time.Sleep(longestWait)
			if got := fmt.Sprint(w.got(key(1))[tries:]); got != want {
				t.Errorf("%v: got %s, want %s", trouble, got, want)
			}
			if got := w.drops(DropCoalesced); got != 40-(len(w.all())-tries) {
				t.Errorf("%v: %d are coalesced", trouble, got)
			}
			if entries, held := w.queue.counts(); entries != 0 || held != 0 {
				t.Errorf("%v: %d entries and %d held pushers are left", trouble, entries, held)
			}
			if s := d.Stats(); s.HeldPushers != 0 || s.HeldBytes != 0 {
				t.Errorf("%v: got %+v", trouble, s)
			}
		})
	}
}

// events are the names of events.
func events(first, end int) (names []string) {
	for e := first; e < end; e++ {
		names = append(names, fmt.Sprintf("$%d", e))
	}
	return names
}

// A busy room does not fill memory either.
func TestHowMuchIsKeptOfShortTrouble(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", always(502))
		for e := range 3 * keepAtFirst {
			w.notify(d, e, "!r:h", name(1))
		}
		time.Sleep(5 * time.Second)
		w.answer("gw", always(200))
		tries := len(w.all())
		time.Sleep(soonWait)
		if got, want := w.got(key(1))[tries:], events(2*keepAtFirst, 3*keepAtFirst); !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
	})
}

// A gateway of one pusher does not close: its failures may be the pusher's.
func TestTheOnlyPusherOfAGatewayIsServedSoonAfterAnOutage(t *testing.T) {
	for _, outage := range []time.Duration{5 * time.Second, time.Minute, time.Hour} {
		inBubble(t, func(w *world) {
			d, stop := w.started()
			defer stop()
			const gateways = 10
			var users []mxid.UserID
			for i := range gateways {
				gateway := fmt.Sprintf("gw%d", i)
				w.set(name(i), key(i), gateway)
				w.set(name(i), "second-"+key(i), gateway)
				w.answer(gateway, always(503))
				users = append(users, name(i))
			}
			w.notify(d, 1, "!r:h", users...)
			time.Sleep(outage)
			for i := range gateways {
				w.answer(fmt.Sprintf("gw%d", i), always(200))
			}
			if took := until(time.Hour, func() bool { return w.served("$1") == 2*gateways }); took > 20*time.Second {
				t.Errorf("after an outage of %v: %v", outage, took)
			}
		})
	}
}

// However many gateways are gone for ever, a host does not spend its time on them.
func TestManyGatewaysThatAreGoneAreTriedAtABoundedRate(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		const gone = 2000
		users := w.users(1, "gw")
		for i := range gone {
			w.set(name(1+i), key(1+i), fmt.Sprintf("gone%d", i))
			w.answer(fmt.Sprintf("gone%d", i), func(context.Context, sent) (module.GatewayAnswer, error) {
				return module.GatewayAnswer{}, errors.New("no such host")
			})
			users = append(users, name(1+i))
		}
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(3 * time.Minute)
		before := len(w.all())
		const seconds = 30
		time.Sleep(seconds * time.Second)
		if got := len(w.all()) - before; got > seconds*retriesPerSecond*3/2 || got < seconds*retriesPerSecond/2 {
			t.Errorf("%d requests in %d s", got, seconds)
		}
		w.notify(d, 2, "!r:h", name(0))
		synctest.Wait()
		if got := fmt.Sprint(w.got(key(0))); got != "[$1 $2]" {
			t.Errorf("the pusher of the gateway that is there got %s", got)
		}
	})
}

// All that a gateway's outage has held is sent soon after its end, however long it
// was.
func TestTheLastPusherIsServedSoonAfterAnOutage(t *testing.T) {
	for name_, outage := range map[string]func(context.Context, sent) (module.GatewayAnswer, error){
		"errors": always(503), "no answer": hangs,
	} {
		t.Run(name_, func(t *testing.T) {
			inBubble(t, func(w *world) {
				const pushers = 10_000
				d, stop := w.started()
				defer stop()
				var users []mxid.UserID
				for i := range pushers {
					w.set(name(i), key(i), "gw")
					users = append(users, name(i))
				}
				w.answer("gw", outage)
				w.notify(d, 1, "!r:h", users...)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if s := d.Stats(); s.HeldPushers != pushers || s.OpenEntries != 0 || s.Gateways[GateProbing] != 1 {
					t.Errorf("during the outage: %+v", s)
				}
				tries := len(w.all())
				if most := 64 + 600/5*2; tries > most {
					t.Errorf("%d requests during the outage, want at most %d", tries, most)
				}
				w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
					time.Sleep(20 * time.Millisecond)
					return status(200), nil
				})
				began, served := time.Now(), map[string]bool{}
				time.Sleep(20 * time.Second)
				for _, p := range w.all()[tries:] {
					if p.status == 200 {
						served[p.pushkey] = true
					}
				}
				if len(served) != pushers {
					t.Errorf("%d of %d pushers are served after %v", len(served), pushers, time.Since(began))
				}
				synctest.Wait()
				if entries, held := w.queue.counts(); entries != 0 || held != 0 {
					t.Errorf("%d entries and %d held pushers are left", entries, held)
				}
			})
		})
	}
}

func TestRetryAfterOfSeveralPushersHoldsForTheGateway(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 500 {
			w.set(name(i), key(i), "gw")
			w.set(name(i), "other-"+key(i), "other")
			users = append(users, name(i))
		}
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			time.Sleep(10 * time.Millisecond)
			return module.GatewayAnswer{Status: 429, RetryAfter: 30 * time.Second}, nil
		})
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(29 * time.Second)
		early := 0
		for _, p := range w.all() {
			if strings.HasPrefix(p.pushkey, "key") {
				early++
			}
		}
		if early > firstPerGateway+1 {
			t.Errorf("%d requests before the time is over", early)
		}
		w.answer("gw", always(200))
		time.Sleep(15 * time.Second)
		for i := range 500 {
			if got := fmt.Sprint(w.got("other-" + key(i))); got != "[$1]" {
				t.Fatalf("pusher %d of the other gateway got %s", i, got)
			}
			if got := w.got(key(i)); len(got) == 0 {
				t.Fatalf("pusher %d was not served", i)
			}
		}
	})
}

func TestRetryAfterOfOnePusherIsItsOwn(t *testing.T) {
	for code, wait := range map[int]time.Duration{429: 30 * time.Second, 503: 30 * time.Second, 507: 0} {
		inBubble(t, func(w *world) {
			d, stop := w.started()
			defer stop()
			w.set(name(1), key(1), "gw")
			w.set(name(2), key(2), "gw")
			w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
				if s.pushkey == key(1) && len(w.got(key(1))) == 0 {
					return module.GatewayAnswer{Status: code, RetryAfter: wait}, nil
				}
				return status(200), nil
			})
			w.notify(d, 1, "!r:h", name(1), name(2))
			w.notify(d, 2, "!r:h", name(1), name(2))
			synctest.Wait()
			if got := fmt.Sprint(w.got(key(2))); got != "[$1 $2]" {
				t.Errorf("%d: the other got %s", code, got)
			}
			time.Sleep(max(wait-time.Millisecond, 0))
			if got := fmt.Sprint(w.got(key(1))); got != "[$1]" {
				t.Errorf("%d: got %s", code, got)
			}
			time.Sleep(time.Second)
			if got := fmt.Sprint(w.got(key(1))); got != "[$1 $1 $2]" {
				t.Errorf("%d: got %s in the end", code, got)
			}
		})
	}
}

// A pusher whose gateway may not be connected to waits long, unless it is set
// anew.
func TestAPusherThatIsSetAnewWaitsNoLonger(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			return module.GatewayAnswer{}, fmt.Errorf("dial: %w", dialguard.ErrRefused)
		})
		w.notify(d, 1, "!r:h", name(1))
		time.Sleep(blockedWait - time.Second)
		if got := fmt.Sprint(w.got(key(1))); got != "[$1]" {
			t.Errorf("got %s", got)
		}
		w.set(name(1), key(1), "elsewhere")
		w.notify(d, 2, "!r:h", name(1))
		synctest.Wait()
		if got := fmt.Sprint(w.got(key(1))); got != "[$1 $1 $2]" {
			t.Errorf("got %s", got)
		}
	})
}

func TestPushersThatAreGoneGetNothing(t *testing.T) {
	for what, change := range map[string]func(*pusher.List){
		"deleted": func(l *pusher.List) { l.Remove(func(pusher.Pusher) bool { return true }) },
		"disabled": func(l *pusher.List) {
			l.Set(pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: key(1)}, Kind: pusher.HTTP, Data: `{}`})
		},
		"email": func(l *pusher.List) {
			l.Set(pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: key(1)}, Kind: pusher.Email, Data: `{}`})
		},
	} {
		inBubble(t, func(w *world) {
			d, stop := w.started()
			defer stop()
			w.set(name(1), key(1), "gw")
			w.answer("gw", always(502))
			w.notify(d, 1, "!r:h", name(1))
			synctest.Wait()
			w.mu.Lock()
			list := w.pushers[name(1)]
			change(&list)
			w.pushers[name(1)] = list
			w.mu.Unlock()
			time.Sleep(fresh) // what was read may still be sent to
			tries := len(w.got(key(1)))
			time.Sleep(time.Hour)
			if got := len(w.got(key(1))); got > tries {
				t.Errorf("%s: got %d requests", what, got-tries)
			}
			if entries, held := w.queue.counts(); entries != 0 || held != 0 || w.drops(DropGone) != 1 {
				t.Errorf("%s: %d entries, %d held, %d dropped", what, entries, held, w.drops(DropGone))
			}
		})
	}
}

func TestWhatIsTooOldIsNotSent(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", always(502))
		w.notify(d, 1, "!r:h", name(1))
		time.Sleep(w.cfg.MaxAge + longestWait)
		w.answer("gw", always(200))
		tries := len(w.all())
		w.notify(d, 2, "!r:h", name(1))
		time.Sleep(longestWait)
		if got := fmt.Sprint(w.got(key(1))[tries:]); got != "[$2]" {
			t.Errorf("got %s", got)
		}
		if w.drops(DropExpired) != 1 {
			t.Errorf("%d are expired", w.drops(DropExpired))
		}
	})
}

// Gateways that hang take neither the requests nor the log of others, however
// many they are.
func TestGatewaysThatHangHarmNoOther(t *testing.T) {
	inBubble(t, func(w *world) {
		const hanging = 30
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 40 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		w.notify(d, 0, "!r:h", users...)
		synctest.Wait()
		for i := range users {
			for g := range hanging {
				w.set(name(i), fmt.Sprintf("%d-%s", g, key(i)), fmt.Sprintf("hangs%d", g))
			}
		}
		for g := range hanging {
			w.answer(fmt.Sprintf("hangs%d", g), hangs)
		}
		w.arriveAtOnce(d, 1, 80, users)
	})
}

// Gateways that were well and hang all at once take at most six seconds of
// others' time.
func TestManyGatewaysThatBeginToHangHarmNoOtherForLong(t *testing.T) {
	inBubble(t, func(w *world) {
		const hanging = 30
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 40 {
			for g := range hanging {
				w.set(name(i), fmt.Sprintf("%d-%s", g, key(i)), fmt.Sprintf("hangs%d", g))
			}
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		w.notify(d, 0, "!r:h", users...)
		synctest.Wait()
		for g := range hanging {
			w.answer(fmt.Sprintf("hangs%d", g), hangs)
		}
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(hangsAfter + pulseEvery)
		w.arriveAtOnce(d, 2, 80, users)
		if s := d.Stats(); s.InFlight > w.cfg.MaxInFlight/4 || s.Slow > slowFactor*w.cfg.MaxInFlight {
			t.Errorf("%d requests are under way, and %d hang", s.InFlight, s.Slow)
		}
	})
}

// However many gateways that were never sent to hang, one that does not is sent its
// first notification soon, and one that has answered before at once.
func TestManyNewGatewaysThatHangHarmNoOther(t *testing.T) {
	inBubble(t, func(w *world) {
		const hanging, seconds = 1000, 90
		d, stop := w.started()
		defer stop()
		w.set("@known:h", "known", "gw")
		w.notify(d, 0, "!r:h", "@known:h")
		for i := range hanging {
			gateway := fmt.Sprintf("hangs%d", i)
			w.set(name(i), key(i), gateway)
			w.answer(gateway, hangs)
		}
		for i := range hanging {
			w.notify(d, 1+i, "!r:h", name(i))
		}
		most := 0
		var asked [seconds]time.Time
		for n := range seconds {
			synctest.Wait()
			user := mxid.UserID(fmt.Sprintf("@new%d:h", n))
			w.set(user, fmt.Sprintf("new%d", n), fmt.Sprintf("new%d", n))
			asked[n] = time.Now()
			w.notify(d, 10_000+n, "!r:h", user, "@known:h")
			time.Sleep(time.Second)
			most = max(most, d.Stats().InFlight+d.Stats().Slow)
		}
		for _, p := range w.all() {
			var event int
			fmt.Sscanf(p.event, "$%d", &event)
			if n := event - 10_000; n >= 0 {
				took, limit := p.began.Sub(asked[n]), time.Duration(0)
				if isNew := p.pushkey != "known"; isNew && n < 2*hanging/(w.cfg.MaxInFlight/4) {
					limit = slowAfter + pulseEvery
				}
				if took > limit {
					t.Errorf("after %d s the request to %s began after %v, want at most %v", n, p.pushkey, took, limit)
				}
			}
		}
		for n := range seconds {
			if len(w.got(fmt.Sprintf("new%d", n))) != 1 {
				t.Errorf("after %d s the new gateway was sent nothing", n)
			}
		}
		if most > 1100 {
			t.Errorf("%d requests are under way", most)
		}
		if entries, held := w.queue.counts(); entries > 0 || held != hanging { // which operators see
			t.Errorf("the log has %d entries, and %d pushers are held", entries, held)
		}
	})
}

// Where more requests hang than there may be, the oldest are cut off, and sent again
// in the end.
func TestRequestsThatHangAreBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		const groups, gateways, users = 4, 20, 8
		w.cfg.MaxInFlight = 8
		d, stop := w.started()
		defer stop()
		var all []mxid.UserID
		for i := range users {
			all = append(all, name(i))
		}
		gateway := func(group, n int) string { return fmt.Sprintf("gw%d-%d", group, n) }
		for group := range groups {
			for n := range gateways {
				for i, u := range all {
					w.set(u, fmt.Sprintf("%d-%d-%d", group, n, i), gateway(group, n))
				}
			}
		}
		w.notify(d, 0, "!r:h", all...) // they are well
		synctest.Wait()
		most := 0
		for group := range groups {
			for n := range gateways {
				w.answer(gateway(group, n), hangs)
			}
			w.notify(d, 1+group, "!r:h", all...)
			for range 6 {
				time.Sleep(time.Second)
				synctest.Wait()
				most = max(most, d.Stats().Slow)
			}
		}
		if limit := slowFactor * w.cfg.MaxInFlight; most < limit || most > limit+w.cfg.MaxInFlight {
			t.Errorf("%d requests hang at a time, want %d", most, limit)
		}
		for group := range groups {
			for n := range gateways {
				w.answer(gateway(group, n), always(200))
			}
		}
		time.Sleep(10 * time.Minute)
		if got := w.served(fmt.Sprintf("$%d", groups)); got != groups*gateways*users {
			t.Errorf("%d of %d pushers are served", got, groups*gateways*users)
		}
		w.wantLeft(0, 0)
	})
}

// arriveAtOnce wants events, one a second, to arrive at the users' own pushers
// with all that was sent before, and to leave the log soon.
func (w *world) arriveAtOnce(d *Delivery, first, events int, users []mxid.UserID) {
	w.t.Helper()
	w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
		time.Sleep(20 * time.Millisecond)
		return status(200), nil
	})
	for e := first; e < first+events; e++ {
		w.notify(d, e, "!r:h", users...)
		time.Sleep(200 * time.Millisecond)
		for i := range users {
			if got := w.got(key(i)); len(got) != e+1 {
				w.t.Fatalf("200 ms after event %d pusher %d got %d of %d", e, i, len(got), e+1)
			}
		}
		time.Sleep(800 * time.Millisecond)
		if entries, _ := w.queue.counts(); entries > 8*w.cfg.Shards {
			w.t.Fatalf("after event %d the log has %d entries", e, entries)
		}
	}
}

// A gateway with one request that hangs gets its share again when the host has
// less to do, not when that request ends.
func TestAGatewayThatWasDeniedIsAskedAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.MaxInFlight = 8
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 40 {
			for _, gateway := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
				w.set(name(i), gateway+key(i), gateway)
				w.answer(gateway, func(context.Context, sent) (module.GatewayAnswer, error) {
					time.Sleep(100 * time.Millisecond)
					return status(200), nil
				})
			}
			users = append(users, name(i))
		}
		w.answer("a", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
			if s.pushkey == "a"+key(0) {
				return hangs(ctx, s)
			}
			return status(200), nil
		})
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(50 * time.Second)
		for i := range users[1:] {
			if got := fmt.Sprint(w.got("a" + key(i+1))); got != "[$1]" {
				t.Fatalf("pusher %d got %s", i+1, got)
			}
		}
	})
}

func TestWhileTheQueueIsAwayNothingIsLostAndLittleIsDoubled(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.MaxInFlight = 16
		var away sync.Map
		w.queue.failWith(func(op string) (error, error) {
			if _, is := away.Load("away"); is && op != "read" {
				return errAway, nil
			}
			return nil, nil
		})
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 2000 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			time.Sleep(time.Millisecond)
			return status(200), nil
		})
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		before := len(w.all())
		away.Store("away", true)
		time.Sleep(10 * time.Second)
		if got := len(w.all()) - before; got > w.cfg.MaxInFlight+savedAhead {
			t.Errorf("%d were sent while nothing could be kept", got)
		}
		if err := w.tryNotify(d, 2, "!r:h", users...); err == nil {
			t.Error("the event was taken")
		}
		away.Clear()
		time.Sleep(20 * time.Second)
		doubled := -len(users)
		for i := range users {
			if got := w.got(key(i)); len(got) == 0 {
				t.Fatalf("pusher %d got nothing", i)
			}
			doubled += len(w.got(key(i)))
		}
		if doubled > w.cfg.MaxInFlight+savedAhead {
			t.Errorf("%d are doubled", doubled)
		}
	})
}

// Hosts that are started and stopped in order double nothing, and are silent for
// no longer than it takes to take a shard.
func TestStoppingInOrderDoublesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			time.Sleep(300 * time.Millisecond)
			return status(200), nil
		})
		var users []mxid.UserID
		for i := range 40 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		d, stop := w.started()
		for e := range 20 {
			w.notify(d, e, "!r:h", users...)
			next, stopNext := w.host()
			time.Sleep(time.Second)
			stop()
			d, stop = next, stopNext
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		var want []string
		for e := range 20 {
			want = append(want, fmt.Sprintf("$%d", e))
		}
		for i := range users {
			if got := w.got(key(i)); !slices.Equal(got, want) {
				t.Errorf("pusher %d got %v", i, got)
			}
		}
		stop()
		if len(w.queue.hosts) > 0 {
			t.Errorf("hosts are left: %v", w.queue.hosts)
		}
	})
}

func TestAfterAHostDiesOthersSendWithinSixSeconds(t *testing.T) {
	inBubble(t, func(w *world) {
		c := &chaos{}
		dead, alive := newFaultyHost(w, c), newFaultyHost(w, c)
		var users []mxid.UserID
		for i := range 100 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		time.Sleep(10 * time.Second)
		dead.kill()
		began := time.Now()
		w.notify(alive.delivery, 1, "!r:h", users...)
		time.Sleep(6*time.Second - time.Since(began))
		for i := range users {
			if got := len(w.got(key(i))); got != 1 {
				t.Errorf("pusher %d got %d", i, got)
			}
		}
		alive.stop()
	})
}

// What a log has dropped is counted once, by whoever owns the shard next.
func TestEvictedEntriesAreCounted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 1
		w.queue.shard(0).evicted = 3
		for range 3 {
			_, stop := w.started()
			w.queue.mu.Lock()
			w.queue.shard(0).evicted += 2
			w.queue.mu.Unlock()
			time.Sleep(3 * time.Second)
			stop()
		}
		if got := w.drops(DropEvicted); got != 9 {
			t.Errorf("%d are counted", got)
		}
	})
}

func TestHeldBytesAreBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.MaxHeldBytes = 1 << 20
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 2000 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		w.answer("gw", always(502))
		for e := range 30 {
			w.notify(d, e, fmt.Sprintf("!%d:h", e), users...)
			time.Sleep(2 * time.Second)
		}
		if s := d.Stats(); s.HeldBytes > w.cfg.MaxHeldBytes*3/2 || s.HeldPushers == 0 {
			t.Errorf("got %+v", s)
		}
		if w.drops(DropEvicted) == 0 {
			t.Error("none is evicted")
		}
	})
}
