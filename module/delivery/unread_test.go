package delivery

import (
	"context"
	"fmt"
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
	placed []module.UserEvent // the events that AreRead was asked about
	delay  time.Duration
	asked  int // for counts
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

func (r *reader) Counts(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Counts] {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked += len(users)
	results := map[mxid.UserID]module.Result[module.Counts]{}
	for _, user := range users {
		results[user] = module.Result[module.Counts]{Value: r.counts[user]}
	}
	return results
}

func (r *reader) AreRead(_ context.Context, events []module.UserEvent) (all []bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.placed = append(r.placed, events...)
	for _, e := range events {
		all = append(all, r.read[e.EventID])
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
		d, stop := w.host()
		defer stop()
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
		d, stop := w.host()
		defer stop()
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

// The event's place comes with the question whether it is read, by the way of the fan-out,
// too.
func TestReadEventsHaveTheirPlace(t *testing.T) {
	for _, recipients := range []int{1, 60} {
		withReader(t, func(w *world, r *reader) {
			w.cfg.Shards = 1
			var users []mxid.UserID
			for i := range recipients {
				w.set(name(i), key(i), "gw")
				users = append(users, name(i))
			}
			d, stop := w.host()
			defer stop()
			e := module.Event{
				JSON:     `{"event_id":"$e","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"hi"}}`,
				Position: 4711, Thread: "$root",
			}
			if err := w.send(d, e, users...); err != nil {
				t.Fatal(err)
			}
			w.wait(3*time.Second, func() bool { return w.queue.Waiting() == 0 })
			if len(r.placed) != recipients {
				t.Errorf("asked about %d events, want %d", len(r.placed), recipients)
			}
			for _, event := range r.placed {
				want := module.UserEvent{User: event.User, RoomID: "!r:h", EventID: "$e", Position: 4711, Thread: "$root"}
				if event != want {
					t.Fatalf("got %+v, want %+v", event, want)
				}
			}
			for _, e := range []module.Event{{JSON: e.JSON, Position: -1}, {JSON: e.JSON, Thread: strings.Repeat("x", 256)}} {
				if err := w.send(d, e, users...); fault.KindOf(err) != fault.InvalidParam {
					t.Errorf("position %d, thread of %d bytes: got error %v", e.Position, len(e.Thread), err)
				}
			}
		})
	}
}

// Counts without an event are repeated after failures, and survive a stop.
func TestBadges(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		w.answer("gw", statuses(502, 502, 200))
		d, stop := w.host()
		badge := func(unread int) {
			t.Helper()
			r.set(name1, unread)
			if err := d.UpdateBadges(t.Context(), name1); err != nil {
				t.Fatal(err)
			}
		}
		badge(5)
		badge(4)
		badge(3)
		time.Sleep(w.cfg.BadgeDelay / 2)
		synctest.Wait()
		if len(w.all()) != 0 {
			t.Error("too early")
		}
		stop()
		d, stop = w.host()
		defer stop()
		w.wait(15*time.Second, func() bool { return w.queue.Waiting() == 0 })
		all := w.all()
		if len(all) != 3 || all[2].counts.Unread != 3 || all[2].event != "" {
			t.Errorf("got %+v", all)
		}
		badge(3) // the same
		time.Sleep(10 * time.Second)
		if len(w.all()) != 3 {
			t.Error("the same counts are sent again")
		}
		badge(0)
		w.wait(10*time.Second, func() bool { return len(w.all()) == 4 })
		if got := w.all()[3].counts; got == nil || got.Unread != 0 {
			t.Errorf("got %v", got)
		}
	})
}

// The queue takes no batch of any length.
func TestBadgesOfManyUsers(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.cfg.Shards = 1
		var users []mxid.UserID
		for n := range module.MaxAdditions + 1 {
			user := mxid.UserID(fmt.Sprintf("@user%d:h", n))
			w.set(user, fmt.Sprint("key", n), "gw")
			users = append(users, user)
		}
		d, stop := w.host()
		defer stop()
		if err := d.UpdateBadges(t.Context(), users...); err != nil {
			t.Fatal(err)
		}
		w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
		if got := len(w.all()); got != len(users) {
			t.Errorf("%d of %d are sent", got, len(users))
		}
	})
}

func TestAppsWithoutCounts(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.cfg.NoCounts = []string{"app"}
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		if err := d.UpdateBadges(t.Context(), name1); err != nil {
			t.Fatal(err)
		}
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
		d, stop := w.host()
		defer stop()
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
		if err := w.send(d, module.Event{JSON: `{"event_id":"$5","room_id":"!r:h","type":"m.call.invite","sender":"@s:h","content":{}}`}, name1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		w.want("key", 1, 3, 4, 5)
	})
}

func TestUnnamedRoomsHaveANameForEachUser(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		e := module.Event{
			JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"x"}}`, Room: match.Room{MemberCount: 3},
		}
		decisions, err := d.Decide(t.Context(), e, []match.Member{{User: name1}})
		if err != nil {
			t.Fatal(err)
		}
		decisions[0].RoomName = "Alice and Bob"
		if err := d.Notify(t.Context(), e, "", decisions); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if all := w.all(); len(all) != 1 || !strings.Contains(all[0].body, `"room_name":"Alice and Bob"`) {
			t.Errorf("got %+v", all)
		}
	})
}

// The counts that a pusher got last are known to all hosts.
func TestBadgesOfTwoHosts(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.set(name1, "key", "gw")
		a, stopA := w.host()
		defer stopA()
		b, stopB := w.host()
		defer stopB()
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
			if err := d.UpdateBadges(t.Context(), name1); err != nil {
				t.Fatal(err)
			}
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
