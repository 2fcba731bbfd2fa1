package delivery

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// several starts hosts, and waits until they share the work.
func (w *world) several(n int) (hosts []*Delivery, stop func()) {
	w.t.Helper()
	w.cfg.Shards = 64 // so that each has some
	var stops []func()
	for range n {
		d, stop := w.host()
		hosts, stops = append(hosts, d), append(stops, stop)
	}
	time.Sleep(10 * time.Second)
	synctest.Wait()
	for _, d := range hosts {
		if d.Stats().ShardsOwned == 0 {
			w.t.Fatal("a host has no shard")
		}
	}
	return hosts, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// users sets a pusher for each of a number of users.
func (w *world) users(n int, gateway string) (users []mxid.UserID) {
	for i := range n {
		w.set(name(i), key(i), gateway)
		users = append(users, name(i))
	}
	return users
}

// served is how many pushers were sent an event.
func (w *world) served(event string) int {
	served := map[string]bool{}
	for _, p := range w.all() {
		if p.status == 200 && p.event == event {
			served[p.pushkey] = true
		}
	}
	return len(served)
}

// until is the first time, to the second, at which something holds.
func until(limit time.Duration, holds func() bool) (took time.Duration) {
	for ; took < limit && !holds(); took += time.Second {
		time.Sleep(time.Second)
		synctest.Wait()
	}
	return took
}

const hostsOfWorld = 3

func TestRetryAfterHoldsAtAllHosts(t *testing.T) {
	inBubble(t, func(w *world) {
		hosts, stop := w.several(hostsOfWorld)
		defer stop()
		users := w.users(2000, "gw")
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			return module.GatewayAnswer{Status: 429, RetryAfter: 30 * time.Second}, nil
		})
		// The users of one shard, which one host has.
		var few []mxid.UserID
		for _, u := range users {
			if ShardOf(u, w.cfg.Shards) == 0 {
				few = append(few, u)
			}
		}
		w.notify(hosts[0], 1, "!r:h", few...)
		time.Sleep(2 * time.Second)
		before := len(w.all())
		if before == 0 || before > firstPerGateway+1 {
			t.Errorf("%d requests before the gateway waits", before)
		}
		w.notify(hosts[0], 2, "!r:h", users...)
		time.Sleep(27 * time.Second)
		if got := len(w.all()) - before; got > 0 {
			t.Errorf("%d requests of other hosts", got)
		}
		w.answer("gw", always(200))
		took := until(time.Minute, func() bool { return w.served("$2") == len(users) })
		if took > 20*time.Second || w.served("$1") != len(few) {
			t.Errorf("all are served %v after the time is over, and %d of %d", took, w.served("$1"), len(few))
		}
		for i, d := range hosts {
			if s := d.Stats(); s.Gateways[GateWaiting]+s.Gateways[GateProbing] > 0 {
				t.Errorf("host %d: %+v", i, s)
			}
		}
	})
}

// The gateway that one host finds to answer again is sent to by all.
func TestAHostThatIsAnsweredOpensAGatewayForAll(t *testing.T) {
	inBubble(t, func(w *world) {
		hosts, stop := w.several(hostsOfWorld)
		defer stop()
		users := w.users(300, "gw")
		w.answer("gw", always(503))
		w.notify(hosts[0], 1, "!r:h", users...)
		time.Sleep(10 * time.Minute)
		for i, d := range hosts {
			if s := d.Stats(); s.Gateways[GateProbing] != 1 || s.HeldPushers == 0 {
				t.Errorf("host %d: %+v", i, s)
			}
		}
		known := w.queue.gateways()["https://gw:443"]
		if known.State != module.GatewayClosed || known.Status != 503 || time.Since(known.Since) < 9*time.Minute {
			t.Errorf("the others know %+v", known)
		}
		w.answer("gw", always(200))
		first := until(time.Minute, func() bool { return w.served("$1") > 0 })
		rest := until(time.Minute, func() bool { return w.served("$1") == len(users) })
		if first > longestProbe || rest > 4*time.Second {
			t.Errorf("one is served after %v, all %v later", first, rest)
		}
		synctest.Wait()
		if len(w.queue.gateways()) > 0 {
			t.Errorf("the others still know %v", w.queue.gateways())
		}
	})
}

// cutOff is a host that cannot reach gateways.
type cutOff struct{ *world }

func (cutOff) Post(context.Context, string, []byte) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{}, errors.New("no route to host")
}

// A host that cannot reach a gateway does not keep the others from it.
func TestAHostThatReachesNoGatewayStopsNoOther(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 64
		_, stopCutOff := w.hostOn(w.queue, cutOff{w})
		defer stopCutOff()
		hosts, stop := w.several(1)
		defer stop()
		users := w.users(100, "gw")
		for e := range 60 {
			w.notify(hosts[0], e, "!r:h", users...)
			time.Sleep(10 * time.Second) // long enough for a gateway to be forgotten
		}
		late := 0
		for _, p := range w.all() {
			var e int
			fmt.Sscanf(p.event, "$%d", &e)
			if sentAt := p.at.Sub(w.all()[0].at).Truncate(10 * time.Second); sentAt > time.Duration(e)*10*time.Second {
				late++
			}
		}
		if late > 0 || len(w.all()) < 60*20 {
			t.Errorf("%d of %d are late", late, len(w.all()))
		}
		if w.queue.gateways()["https://gw:443"].State != module.GatewayClosed {
			t.Errorf("the others know %+v", w.queue.gateways())
		}
	})
}

func TestAnOperatorHoldsAGateway(t *testing.T) {
	inBubble(t, func(w *world) {
		hosts, stop := w.several(hostsOfWorld)
		defer stop()
		users := w.users(100, "gw")
		for i, u := range users {
			w.set(u, "other-"+key(i), "other")
		}
		w.notify(hosts[0], 1, "!r:h", users...)
		synctest.Wait()
		w.queue.hold("https://gw:443")
		time.Sleep(2 * time.Second)
		before := w.served("$1")
		for e := range 3 {
			w.notify(hosts[0], 2+e, "!r:h", users...)
			time.Sleep(time.Hour)
		}
		if got := w.served("$2"); before != 200 || got != 100 {
			t.Errorf("%d pushers got the event before it is held, %d the one after", before, got)
		}
		if entries, held := w.queue.counts(); entries != 0 || held != len(users) {
			t.Errorf("%d entries and %d held pushers", entries, held)
		}
		w.queue.open("https://gw:443")
		time.Sleep(10 * time.Second)
		for i := range users {
			if got := fmt.Sprint(w.got(key(i))); got != "[$1 $2 $3 $4]" {
				t.Fatalf("pusher %d got %s", i, got)
			}
		}
		if entries, held := w.queue.counts(); entries != 0 || held != 0 {
			t.Errorf("%d entries and %d held pushers are left", entries, held)
		}
	})
}

// What a host has told is not known for long after its death, nor does it keep in
// mind a gateway for which nothing is left.
func TestNothingIsLeftOfAGateway(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.MaxAge = 10 * time.Minute
		c := &chaos{}
		dead, alive := newFaultyHost(w, c), newFaultyHost(w, c)
		defer alive.stop()
		users := w.users(100, "gw")
		w.answer("gw", always(503))
		time.Sleep(10 * time.Second)
		w.notify(alive.delivery, 1, "!r:h", users...)
		time.Sleep(10 * time.Second)
		dead.kill()
		time.Sleep(time.Minute)
		if len(w.queue.gateways()) != 1 {
			t.Errorf("the others know %v", w.queue.gateways())
		}
		time.Sleep(15 * time.Minute) // it expires
		w.queue.ShareGateways(t.Context(), nil, 0)
		if s := alive.delivery.Stats(); s.Gateways != [gateStates]int{} || len(w.queue.gateways()) > 0 {
			t.Errorf("got %+v, and %v are known", s, w.queue.gateways())
		}
	})
}
