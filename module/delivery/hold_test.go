package delivery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// desk is a user who looks at a desktop, and reads there.
type desk struct {
	mu    sync.Mutex
	lasts time.Duration
	asked []module.UserDevice
	read  map[string]bool // events
}

func (d *desk) Hold(_ context.Context, devices []module.UserDevice) []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, devices...)
	return slices.Repeat([]time.Duration{d.lasts}, len(devices))
}

func (d *desk) AreRead(_ context.Context, events []module.UserEvent) []bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	read := make([]bool, len(events))
	for i, e := range events {
		read[i] = d.read[e.EventID]
	}
	return read
}

func (d *desk) Counts(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[module.Counts] {
	return nil
}

func (d *desk) reads(event string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read[event] = true
}

// sitDown has all users look at a desktop for a while.
func (w *world) sitDown(lasts time.Duration) *desk {
	d := &desk{lasts: lasts, read: map[string]bool{}}
	w.attention, w.unread = d, d
	w.set(name(1), key(1), "gw")
	return d
}

// wantAfter wants what has arrived when a time is over.
func (w *world) wantAfter(d time.Duration, want string) {
	w.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := fmt.Sprint(w.got(key(1))); got != want {
		w.t.Errorf("got %s, want %s", got, want)
	}
}

func TestWhileTheUserLooksElsewhereNotificationsWait(t *testing.T) {
	inBubble(t, func(w *world) {
		desk := w.sitDown(30 * time.Second)
		d, stop := w.started()
		defer stop()
		w.notify(d, 1, "!r:h", name(1))
		time.Sleep(10 * time.Second)
		w.notify(d, 2, "!r:h", name(1))
		if entries, held := w.queue.counts(); entries > 1 || held != 1 {
			t.Errorf("%d entries are in the log, and %d pushers held", entries, held)
		}
		w.wantAfter(20*time.Second-1, "[]")
		w.wantAfter(1, "[$1]") // then the second waits for its own time
		w.wantAfter(30*time.Second-1, "[$1]")
		w.wantAfter(1, "[$1 $2]")
		w.notify(d, 3, "!r:h", name(1))
		time.Sleep(10 * time.Second)
		desk.reads("$3")
		w.wantAfter(time.Minute, "[$1 $2]")
		if len(desk.asked) != 3 || w.drops(DropRead) != 1 {
			t.Errorf("asked %d times, %d are dropped as read", len(desk.asked), w.drops(DropRead))
		}
		if entries, held := w.queue.counts(); entries != 0 || held != 0 {
			t.Errorf("%d entries and %d held pushers are left", entries, held)
		}
	})
}

func TestNothingIsHeldForLongerThanFiveMinutes(t *testing.T) {
	inBubble(t, func(w *world) {
		w.sitDown(time.Hour)
		d, stop := w.started()
		defer stop()
		w.notify(d, 1, "!r:h", name(1))
		time.Sleep(time.Minute)
		w.notify(d, 2, "!r:h", name(1))
		w.wantAfter(4*time.Minute-1, "[]")
		w.wantAfter(1, "[$1]")
		w.wantAfter(time.Minute, "[$1 $2]")
	})
}

func TestACallIsNeverHeld(t *testing.T) {
	inBubble(t, func(w *world) {
		w.sitDown(time.Minute)
		w.cfg.Jitter = 30 * time.Second
		d, stop := w.started()
		defer stop()
		w.notify(d, 0, "!r:h", name(1))
		call := module.Event{JSON: `{"event_id":"$call","room_id":"!r:h","type":"m.call.invite","sender":"@sender:h","content":{}}`}
		if err := w.send(d, call, name(1)); err != nil {
			t.Fatal(err)
		}
		w.wantAfter(0, "[$0 $call]")
		w.notify(d, 1, "!r:h", name(1))
		w.wantAfter(40*time.Second, "[$0 $call]")
		w.notify(d, 2, "!r:h", name(1))
		call.JSON = `{"event_id":"$again","room_id":"!r:h","type":"m.call.invite","sender":"@sender:h","content":{}}`
		if err := w.send(d, call, name(1)); err != nil {
			t.Fatal(err)
		}
		w.wantAfter(0, "[$0 $call $1 $2 $again]")
	})
}

func TestWhatIsHeldOutlivesItsHost(t *testing.T) {
	inBubble(t, func(w *world) {
		desk := w.sitDown(time.Minute)
		dies, lives := newFaultyHost(w, &chaos{}), newFaultyHost(w, &chaos{})
		time.Sleep(10 * time.Second)
		w.set(name(2), key(2), "gw") // one of them is with each host, or both with one
		for e := range 3 {
			w.notify(lives.delivery, e, "!r:h", name(1), name(2), name(3), name(4), name(5), name(6))
		}
		time.Sleep(20 * time.Second)
		dies.kill()
		w.wantAfter(longestHold, "[$0 $1 $2]")
		if got := fmt.Sprint(w.got(key(2))); got != "[$0 $1 $2]" {
			t.Errorf("the other got %s", got)
		}
		if len(desk.asked) < 6 {
			t.Errorf("asked %d times", len(desk.asked))
		}
		lives.stop()
	})
}

func TestJitterHidesWhenMessagesCame(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Jitter = 20 * time.Second
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 40 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		began := time.Now()
		var want []string
		for e := range 15 {
			w.notify(d, e, "!r:h", users...)
			want = append(want, fmt.Sprintf("$%d", e))
		}
		time.Sleep(w.cfg.Jitter)
		synctest.Wait()
		early, late := 0, 0
		for i := range users {
			if got := w.got(key(i)); !slices.Equal(got, want) {
				t.Errorf("pusher %d got %v", i, got)
			}
		}
		for _, p := range w.all() {
			switch {
			case p.event != "$0":
			case p.at.Sub(began) < w.cfg.Jitter/2:
				early++
			default:
				late++
			}
		}
		if early < 5 || late < 5 {
			t.Errorf("%d in the first half of the time, %d in the second", early, late)
		}
	})
}
