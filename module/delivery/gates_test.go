package delivery

import (
	"fmt"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// behind makes pushers wait at gates that fail.
func (w *world) behind(d *Delivery, gates, pushers int) {
	w.t.Helper()
	var users []mxid.UserID
	for i := range gates * pushers {
		w.set(name(i), key(i), fmt.Sprint("gw", i%gates))
		users = append(users, name(i))
	}
	for g := range gates {
		w.answer(fmt.Sprint("gw", g), always(502))
	}
	w.notify(d, 1, "!r:h", users...)
	time.Sleep(2 * time.Minute)
	if closed := d.Stats().Gateways[GateClosed]; closed != gates {
		w.t.Fatalf("%d gates are closed", closed)
	}
}

// However many wait behind closed gates, a host only tries the gates.
func TestClosedGatesCostTheirProbes(t *testing.T) {
	for label, pushers := range map[string]int{"control": 5, "many": 120} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				const gates = 10
				d := w.host()
				w.behind(d, gates, pushers)
				calls, posts := w.queue.Calls(), len(w.all())
				time.Sleep(time.Minute)
				calls, posts = (w.queue.Calls()-calls)/60, len(w.all())-posts
				if most := gates * 60 / 5 * 2; posts > most || posts < gates*60/10 {
					t.Errorf("%d requests in a minute", posts)
				}
				if calls > 8*gates {
					t.Errorf("%d calls of the queue in a second", calls)
				}
				if late := d.Stats().Late; late > time.Second {
					t.Errorf("late by %v", late)
				}
			})
		})
	}
}

// When a gate opens, what waits for it goes at once.
func TestBacklogsOfAGateThatOpensAreSentSoon(t *testing.T) {
	inBubble(t, func(w *world) {
		const pushers = 1000
		d := w.host()
		w.behind(d, 1, pushers)
		w.answer("gw0", always(200))
		w.wait(time.Minute, func() bool { return d.Stats().Gateways[GateClosed] == 0 })
		w.wait(5*time.Second, func() bool { return w.queue.Waiting() == 0 })
	})
}
