package delivery

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// stopped returns a host that does not send, so that a large event stays as it was stored.
func (w *world) stopped() *Delivery {
	w.t.Helper()
	d, err := New(Seams{Queue: w.queue, Gateway: w, Host: &worldHost{w: w}, Feed: newFeed(w.t, worldRules{})}, w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := d.Check(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return d
}

// rulesWithTweaks notify of each message, with a sound, a highlight and a large tweak.
func rulesWithTweaks(t *testing.T, user mxid.UserID, large string) *match.Rules {
	t.Helper()
	set := pushrule.ServerDefault(user)
	err := set.Put(pushrule.Override, "large", pushrule.Draft{Actions: []pushrule.Action{
		`"notify"`, `{"set_tweak":"sound","value":"default"}`, `{"set_tweak":"highlight"}`,
		pushrule.Action(fmt.Sprintf(`{"set_tweak":"x","value":"%s"}`, large)),
	}}, pushrule.Position{})
	if err != nil {
		t.Fatal(err)
	}
	return match.NewCache(1<<20).Rules(user, set)
}

// Ten members of a large room have rules with 60 KB of tweaks each, and the event has
// characters that encoding/json writes in six bytes.
func TestALargeEventIsStoredInFewBytes(t *testing.T) {
	const users, attackers = 10_000, 10
	stored := func(w *world, members []match.Member) int {
		w.cfg.Shards = 100
		d := w.stopped()
		e := module.Event{JSON: fmt.Sprintf(
			`{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"%s"}}`, strings.Repeat("<", 60_000))}
		e.Room.MemberCount = 3
		decisions, err := d.Decide(t.Context(), e, members)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Notify(t.Context(), e, "", decisions); err != nil {
			t.Fatal(err)
		}
		return w.queue.TextBytes()
	}
	members := make([]match.Member, users)
	for i := range members {
		members[i].User = name(i)
	}
	var before, during int
	inBubble(t, func(w *world) { before = stored(w, members) })
	for i := range attackers {
		members[i].Rules = rulesWithTweaks(t, name(i), strings.Repeat(fmt.Sprint(i), 60_000))
	}
	inBubble(t, func(w *world) { during = stored(w, members) })
	if before > 1<<20 || during > before+attackers*1<<10 {
		t.Errorf("%d bytes, with large tweaks %d", before, during)
	}
}

func TestLargeTweaksAreCut(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		e := module.Event{JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"x"}}`}
		for n, large := range []string{"short", strings.Repeat("x", 5000)} {
			e.Room.MemberCount = 3
			decisions, err := d.Decide(t.Context(), e, []match.Member{{User: name1, Rules: rulesWithTweaks(t, name1, large)}})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Notify(t.Context(), e, fmt.Sprint(n), decisions); err != nil {
				t.Fatal(err)
			}
			w.wait(1e9, func() bool { return len(w.all()) == n+1 })
			want := `"tweaks":{"sound":"default","highlight":true}`
			if n == 0 {
				want = `"tweaks":{"sound":"default","highlight":true,"x":"short"}`
			}
			if got := w.all()[n].body; !strings.Contains(got, want) {
				t.Errorf("got %.400s, want %s", got, want)
			}
		}
	})
}

// An event with many recipients is stored in a form of its own; the notifications are the
// same.
func TestLargeEventsHaveTheSameNotifications(t *testing.T) {
	for name, e := range map[string]module.Event{
		"text":       {JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"<&>\u2028\"é"}}`, SenderName: "S<", RoomName: "R", RoomAlias: "#r:h"},
		"state":      {JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.room.encrypted","sender":"@s:h","state_key":"@u1:h","content":{"membership":"invite"}}`},
		"call":       {JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.call.invite","sender":"@s:h","content":{"lifetime":30000}}`},
		"large":      {JSON: fmt.Sprintf(`{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"%s"}}`, strings.Repeat("x", 9000)), SenderName: "S"},
		"large name": {JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h","content":{"body":"x"}}`, SenderName: strings.Repeat("s", 9000)},
		"no content": {JSON: `{"event_id":"$1","room_id":"!r:h","type":"m.room.message","sender":"@s:h"}`},
	} {
		t.Run(name, func(t *testing.T) {
			bodies := func(users int) (all map[string]string) {
				inBubble(t, func(w *world) {
					w.cfg.Shards = 1
					var members []mxid.UserID
					for i := range users {
						members = append(members, mxid.UserID(fmt.Sprintf("@u%d:h", i)))
						w.set(members[i], key(i), "gw")
					}
					d, stop := w.host()
					defer stop()
					if err := w.send(d, e, members...); err != nil {
						t.Fatal(err)
					}
					w.wait(20e9, func() bool { return w.queue.Waiting() == 0 })
					all = map[string]string{}
					for _, s := range w.all() {
						all[s.pushkey] = s.body
					}
				})
				return all
			}
			few, many := bodies(3), bodies(fanOutAbove+1)
			for i := range 3 {
				if few[key(i)] == "" || few[key(i)] != many[key(i)] {
					t.Errorf("%s\n%s", few[key(i)], many[key(i)])
				}
			}
		})
	}
}

// watchedQueue has the largest number of additions in a batch. Forget replaces what Enqueue
// has added.
type watchedQueue struct {
	module.DeliveryQueue
	mu      sync.Mutex
	largest int
	forget  bool
}

func (q *watchedQueue) Enqueue(ctx context.Context, batches []module.DeliveryBatch) []module.Result[module.Enqueued] {
	results := q.DeliveryQueue.Enqueue(ctx, batches)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range batches {
		q.largest = max(q.largest, len(b.Additions))
		for i := range b.Additions {
			if q.forget {
				b.Additions[i].Notification.Meta = "unreadable"
			}
		}
	}
	return results
}

// Users with a hundred pushers keep the queue no longer busy than other users.
func TestBatchesAreBoundedByNotifications(t *testing.T) {
	for _, test := range []struct{ users, pushers int }{{40, 100}, {fanOutAbove + 10, 100}, {300, 1}, {30, 1}} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.cfg.Shards = 1
				var members []mxid.UserID
				for i := range test.users {
					members = append(members, name(i))
					for n := range test.pushers {
						w.set(name(i), fmt.Sprintf("%d-%d", i, n), fmt.Sprint("gw", i))
					}
				}
				queue := &watchedQueue{DeliveryQueue: w.queue}
				d, stop := w.hostOn(queue, w)
				defer stop()
				w.notify(d, 1, "!r:h", members...)
				w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
				if n := len(w.all()); n != test.users*test.pushers || queue.largest > fanOutStep {
					t.Errorf("%d of %d were sent, %d in a batch", n, test.users*test.pushers, queue.largest)
				}
			})
		})
	}
}

// What a host sends at once needs no second look at what it has stored.
func TestTheMetaIsHandedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		d, stop := w.hostOn(&watchedQueue{DeliveryQueue: w.queue, forget: true}, w)
		defer stop()
		w.notify(d, 1, "!r:h", name1)
		w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
		if got := w.got("key"); len(got) != 1 || got[0] != "$1" {
			t.Errorf("got %v", got)
		}
	})
}
