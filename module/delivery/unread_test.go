package delivery

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// reader is a host's Unread and Attention.
type reader struct {
	mu     sync.Mutex
	counts map[mxid.UserID]module.Counts
	read   map[string]bool
	placed []module.UserEvent // the events that States was asked about
	delay  time.Duration
	err    error
	takes  func([]module.UserEvent) time.Duration // before an answer; nil for none
	asked  int                                    // for counts only
	looked []module.UserDevice
}

func (r *reader) do(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *reader) set(user mxid.UserID, unread int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[user] = module.Counts{Unread: unread}
}

func (r *reader) States(_ context.Context, events []module.UserEvent) (all []module.Result[module.UnreadState]) {
	if r.takes != nil {
		time.Sleep(r.takes(events))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		if e.EventID == "" {
			r.asked++
		} else {
			r.placed = append(r.placed, e)
		}
		counts := r.counts[e.User]
		all = append(all, module.Result[module.UnreadState]{Value: module.UnreadState{IsRead: r.read[e.EventID], Counts: &counts}, Err: r.err})
	}
	return all
}

func (r *reader) Delay(_ context.Context, devices []module.UserDevice) (all []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range devices {
		all = append(all, r.delay)
	}
	r.looked = append(r.looked, devices...)
	return all
}

func withReader(t *testing.T, test func(w *world, r *reader)) {
	inBubble(t, func(w *world) {
		r := &reader{counts: map[mxid.UserID]module.Counts{}, read: map[string]bool{}}
		w.unread, w.attention = r, r
		test(w, r)
	})
}

func TestCountsAreReadRightBeforeSending(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		w.answer("gw", statuses(502, 200))
		d := w.host()
		r.set(name1, 1)
		w.notify(d, 1, "!r:h", name1)
		synctest.Wait()
		r.set(name1, 2)
		w.wait(3*time.Second, func() bool { return w.queue.Waiting() == 0 })
		if all := w.all(); len(all) != 2 || all[0].counts.Unread != 1 || all[1].counts.Unread != 2 {
			t.Errorf("got %+v", all)
		}
	})
}

func TestReadEventsAreNotSent(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		r.do(func() { r.read["$2"] = true })
		d := w.host()
		for e := range 4 {
			w.notify(d, e, "!r:h", name1)
		}
		synctest.Wait()
		w.want("key", 0, 1, 3)
		if w.drops(DropRead) != 1 {
			t.Errorf("dropped %v", w.dropped)
		}
	})
}

// The event's place comes with the question whether it is read.
func TestReadEventsHaveTheirPlace(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		d := w.host()
		e := module.Event{
			JSON:     `{"event_id":"$e","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"hi"}}`,
			Position: 4711, Thread: "$root",
		}
		if err := w.send(d, e, name1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := module.UserEvent{User: name1, RoomID: "!r:h", EventID: "$e", Position: 4711, Thread: "$root"}
		if !slices.Equal(r.placed, []module.UserEvent{want}) {
			t.Fatalf("got %+v, want %+v", r.placed, want)
		}
		for _, e := range []module.Event{{JSON: e.JSON, Position: -1}, {JSON: e.JSON, Thread: strings.Repeat("x", 256)}} {
			if err := w.send(d, e, name1); fault.KindOf(err) != fault.InvalidParam {
				t.Errorf("position %d, thread of %d bytes: got error %v", e.Position, len(e.Thread), err)
			}
		}
	})
}

// Counts without an event are repeated after failures, and survive a stop.
func TestBadges(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		w.answer("gw", statuses(502, 502, 200))
		d, stop := w.hostOn(w.queue, w)
		for _, unread := range []int{5, 4, 3} {
			r.set(name1, unread)
			w.badge(d, name1)
		}
		time.Sleep(w.cfg.BadgeDelay / 2)
		synctest.Wait()
		if len(w.all()) != 0 {
			t.Error("too early")
		}
		stop()
		w.host()
		w.wait(15*time.Second, func() bool { return w.queue.Waiting() == 0 })
		all := w.all()
		if len(all) != 3 || all[2].counts.Unread != 3 || all[2].event != "" {
			t.Errorf("got %+v", all)
		}
	})
}

// A message comes while counts wait for further changes.
func TestAMessageDoesNotWaitForCounts(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		d := w.host()
		r.set(name1, 1)
		w.badge(d, name1)
		time.Sleep(w.cfg.BadgeDelay / 10)
		began := time.Now()
		w.notify(d, 1, "!r:h", name1)
		w.wait(w.cfg.BadgeDelay, func() bool { return w.queue.Waiting() == 0 })
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the message came after %v", took)
		}
		if all := w.all(); len(all) == 0 || all[len(all)-1].event == "" {
			t.Errorf("got %+v", all)
		}
	})
}

func TestAppsWithoutCounts(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.cfg.NoCounts = []string{"app"}
		w.set(name1, "key", "gw")
		d := w.host()
		w.badge(d, name1)
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(10 * time.Second)
		w.want("key", 1)
		if w.all()[0].counts != nil || r.asked != 0 {
			t.Errorf("got %v, asked %d times", w.all()[0].counts, r.asked)
		}
	})
}

func TestAttention(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		d := w.host()
		r.do(func() { r.delay = 30 * time.Second })
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(29 * time.Second)
		w.want("key")
		time.Sleep(3 * time.Second)
		w.want("key", 1)
		if len(r.looked) != 1 {
			t.Errorf("asked about %v", r.looked)
		}
		// A delayed notification that the user reads is not sent.
		w.notify(d, 2, "!r:h", name1)
		time.Sleep(time.Second)
		r.do(func() { r.read["$2"] = true })
		time.Sleep(32 * time.Second)
		w.want("key", 1)
		// A delay lasts at most five minutes.
		r.do(func() { r.delay = time.Hour })
		w.notify(d, 3, "!r:h", name1)
		time.Sleep(5*time.Minute + 2*time.Second)
		w.want("key", 1, 3)
		// A call ends the delay.
		w.notify(d, 4, "!r:h", name1)
		time.Sleep(time.Second)
		w.event(d, `{"event_id":"$5","room_id":"!r:h","type":"m.call.invite","sender":"@s:h","content":{}}`, name1)
		time.Sleep(2 * time.Second)
		w.want("key", 1, 3, 4, 5)
	})
}

func TestARecipientHasARoomNameAndTweaks(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		d := w.host()
		e := module.Event{
			JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"x"}}`, Room: match.Room{MemberCount: 2},
		}
		decisions, err := d.Decide(w.t.Context(), e, []match.Member{{User: name1}})
		if err != nil {
			t.Fatal(err)
		}
		decisions[0].RoomName = "Alice and Bob"
		if err := d.Notify(w.t.Context(), e, decisions); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if all := w.all(); len(all) != 1 || !strings.Contains(all[0].body, `"room_name":"Alice and Bob"`) || !strings.Contains(all[0].body, `"tweaks":{"sound":"default"}`) {
			t.Errorf("got %+v", all)
		}
	})
}

// The counts that a pusher got last are known to all hosts.
func TestBadgesOfTwoHosts(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		a := w.host()
		b := w.host()
		last := func(want int) {
			t.Helper()
			w.wait(10*time.Second, func() bool { return w.queue.Waiting() == 0 })
			all := w.all()
			if len(all) == 0 || all[len(all)-1].counts.Unread != want {
				t.Errorf("got %+v, want %d", all, want)
			}
		}
		badge := func(d *Delivery, unread int) {
			t.Helper()
			r.set(name1, unread)
			w.badge(d, name1)
			last(unread)
		}
		badge(a, 0)
		r.set(name1, 1)
		w.notify(b, 1, "!r:h", name1)
		last(1)
		badge(a, 0)
		sent := len(w.all())
		badge(b, 0)
		if len(w.all()) != sent {
			t.Error("the same counts are sent again")
		}
		w.set(name1, "key", "gw")
		badge(b, 0)
		if len(w.all()) != sent+1 {
			t.Error("a pusher that was set again gets no counts")
		}
	})
}

// Without counts, a notification is sent at once, and a badge waits.
func TestBadgesWaitForUnavailableCounts(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		r.err = module.Unavailable(nil)
		w.set(name1, "key", "gw")
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		r.set(name1, 3)
		w.badge(d, name1)
		time.Sleep(10 * time.Second)
		w.want("key", 1)
		if w.all()[0].counts != nil {
			t.Errorf("got %+v", w.all()[0])
		}
		r.do(func() { r.err = nil })
		w.wait(20*time.Second, func() bool { return w.queue.Waiting() == 0 })
		if all := w.all(); len(all) != 2 || all[1].counts == nil || all[1].counts.Unread != 3 {
			t.Errorf("got %+v", all)
		}
	})
}

// What the host says about the next notification is asked while a request is under way. It is given up after 200 ms.
func TestTheHostIsAskedAheadAndNotForLong(t *testing.T) {
	for label, test := range map[string]struct {
		takes, atMost time.Duration
		hasCounts     bool
	}{
		"at once": {0, time.Second, true}, "as long as a request": {100 * time.Millisecond, 1200 * time.Millisecond, true},
		"too long": {time.Hour, 3500 * time.Millisecond, false},
	} {
		t.Run(label, func(t *testing.T) {
			withReader(t, func(w *world, r *reader) {
				w.attention, r.takes = nil, func([]module.UserEvent) time.Duration { return test.takes }
				w.set(name1, "key", "gw")
				w.answer("gw", slow(100*time.Millisecond, 200))
				d := w.host()
				synctest.Wait()
				began := time.Now()
				for e := range 10 {
					w.notify(d, e, "!r:h", name1)
				}
				w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
				if took := time.Since(began); took > test.atMost {
					t.Errorf("it took %v", took)
				}
				w.want("key", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
				for _, s := range w.all() {
					if (s.counts != nil) != test.hasCounts {
						t.Errorf("%s: counts %v", s.event, s.counts)
					}
				}
				time.Sleep(time.Hour) // of questions
			})
		})
	}
}

// Counts that stand before an event are not sent: the event has newer ones.
func TestCountsBeforeAnEventAreLeftOut(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		d := w.host()
		synctest.Wait()
		r.set(name1, 1)
		w.badge(d, name1)
		w.notify(d, 1, "!r:h", name1)
		r.set(name1, 2)
		w.wait(10*time.Second, func() bool { return w.queue.Waiting() == 0 })
		time.Sleep(10 * time.Second)
		if all := w.all(); len(all) != 1 || all[0].event != "$1" || all[0].counts.Unread != 2 || w.drops(DropCoalesced) != 1 {
			t.Errorf("got %+v", all)
		}
	})
}

// Counts wait with a call behind them, and the call expires, is read or is refused: the badge is right all the same.
func TestCountsBeforeACallThatIsNotDelivered(t *testing.T) {
	const call = `{"event_id":"$2","room_id":"!r:h","type":"m.call.invite","sender":"@s:h","content":{}}`
	for label, test := range map[string]struct {
		isRead bool
		status int // of the call
		calls  int // requests for it after the outage
	}{"expired": {false, 502, 0}, "read": {true, 502, 0}, "refused": {false, 400, 2}, "delivered": {false, 200, 1}} {
		t.Run(label, func(t *testing.T) {
			withReader(t, func(w *world, r *reader) {
				w.set(name1, "key", "gw")
				d := w.host()
				r.set(name1, 3)
				w.notify(d, 1, "!r:h", name1)
				synctest.Wait()
				w.answer("gw", always(502))
				r.set(name1, 0)
				if err := d.UpdateBadges(t.Context(), name1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(4 * time.Second)
				if err := w.send(d, module.Event{JSON: call, Expires: time.Now().Add(5 * time.Second)}, name1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				r.do(func() { r.read["$2"] = test.isRead })
				if label == "expired" {
					time.Sleep(10 * time.Second)
				}
				w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
					if s.event == "$2" {
						return module.GatewayAnswer{Status: test.status}, nil
					}
					return module.GatewayAnswer{Status: 200}, nil
				})
				after := len(w.all())
				w.wait(20*time.Second, func() bool { return w.queue.Waiting() == 0 })
				calls, badge := 0, -1
				for _, s := range w.all()[after:] {
					if s.event == "$2" {
						calls++
					}
					if s.status == 200 && s.counts != nil {
						badge = s.counts.Unread
					}
				}
				if badge != 0 || calls > test.calls {
					t.Errorf("the badge is %d, the call was sent %d times", badge, calls)
				}
			})
		})
	}
}
