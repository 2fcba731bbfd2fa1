package delivery

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// rejects is a gateway that rejects the pushkeys that is says.
func rejects(is func(pushkey string) bool) func(context.Context, sent) (module.GatewayAnswer, error) {
	return func(_ context.Context, s sent) (module.GatewayAnswer, error) {
		answer := module.GatewayAnswer{Status: 200, Rejected: []string{"not " + s.pushkey}}
		if is(s.pushkey) {
			answer.Rejected = append(answer.Rejected, s.pushkey)
		}
		return answer, nil
	}
}

func (w *world) pushersOf(users ...mxid.UserID) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, user := range users {
		list := w.pushers[user]
		n += list.Len()
	}
	return n
}

func TestARejectedPusherIsRemovedWithinFiveSeconds(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		for i := range 3 {
			w.set(name(i), key(i), "gw")
		}
		w.set(name(1), "another", "gw")
		w.answer("gw", rejects(func(pushkey string) bool { return pushkey == key(1) }))
		w.notify(d, 1, "!r:h", name(0), name(1), name(2))
		w.notify(d, 2, "!r:h", name(0), name(1), name(2))
		time.Sleep(2 * time.Second)
		if got := w.pushersOf(name(1)); got != 2 {
			t.Errorf("after 2 s the user has %d pushers", got)
		}
		time.Sleep(3 * time.Second)
		w.notify(d, 3, "!r:h", name(0), name(1), name(2))
		time.Sleep(saveEvery)
		synctest.Wait()
		if got := w.pushersOf(name(0), name(1), name(2)); got != 3 {
			t.Errorf("%d pushers are left", got)
		}
		for pushkey, want := range map[string]string{key(0): "[$1 $2 $3]", key(1): "[$1]", "another": "[$1 $2 $3]", key(2): "[$1 $2 $3]"} {
			if got := fmt.Sprint(w.got(pushkey)); got != want {
				t.Errorf("%s got %s, want %s", pushkey, got, want)
			}
		}
		if entries, held := w.queue.counts(); entries != 0 || held != 0 {
			t.Errorf("%d entries and %d held pushers are left", entries, held)
		}
	})
}

// A pusher that is set again, whenever that is, stays.
func TestARejectionRemovesNoPusherThatWasSetSince(t *testing.T) {
	for after := range 60 {
		inBubble(t, func(w *world) {
			d, stop := w.started()
			defer stop()
			w.set(name(1), key(1), "gw")
			first := true
			w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
				time.Sleep(time.Second) // with what it got
				answer := module.GatewayAnswer{Status: 200}
				if first {
					first, answer.Rejected = false, []string{s.pushkey}
				}
				return answer, nil
			})
			w.notify(d, 1, "!r:h", name(1))
			time.Sleep(time.Duration(after)*100*time.Millisecond + 50*time.Millisecond)
			w.set(name(1), key(1), "gw")
			isRemoved := len(w.removed) > 0
			w.notify(d, 2, "!r:h", name(1))
			time.Sleep(time.Minute)
			if got := w.pushersOf(name(1)); got != 1 || len(w.removed) > 0 && !isRemoved {
				t.Errorf("set after %d ms: %d pushers, %v", after*100, got, w.removed)
			}
			want := "[$1 $2]"
			if after < 10 { // before the answer, so that the new one may be good
				want = "[$1 $1 $2]"
			}
			if got := fmt.Sprint(w.got(key(1))); got != want {
				t.Errorf("set after %d ms: got %s", after*100, got)
			}
			if entries, held := w.queue.counts(); entries != 0 || held != 0 {
				t.Errorf("set after %d ms: %d entries and %d held pushers are left", after*100, entries, held)
			}
		})
	}
}

// A gateway that rejects everybody is sent nothing more for them, and their
// pushers stay for a day, whichever hosts they are on.
func TestAGatewayThatRejectsManyHasThemKept(t *testing.T) {
	for hosts := 1; hosts <= 3; hosts++ {
		inBubble(t, func(w *world) {
			d, stop := w.host()
			stops := []func(){stop}
			for range hosts - 1 {
				_, stop := w.host()
				stops = append(stops, stop)
			}
			time.Sleep(10 * time.Second)
			var users []mxid.UserID
			for i := range 80 {
				w.set(name(i), key(i), "gw")
				users = append(users, name(i))
			}
			w.notify(d, 1, "!r:h", users...)
			time.Sleep(time.Minute)
			w.answer("gw", rejects(func(string) bool { return true }))
			w.notify(d, 2, "!r:h", users...)
			time.Sleep(30 * time.Minute)
			if left := w.pushersOf(users...); left < 40 {
				t.Errorf("%d hosts: %d pushers are left", hosts, left)
			}
			w.notify(d, 3, "!r:h", users...)
			time.Sleep(5 * time.Minute)
			if got := len(w.all()); got != 160 {
				t.Errorf("%d hosts: %d requests", hosts, got)
			}
			reports := 0
			for _, problem := range w.reports {
				if problem == observe.TooManyRejections {
					reports++
				}
			}
			if reports == 0 || reports > hosts {
				t.Errorf("%d hosts reported %v", hosts, w.reports)
			}
			for _, stop := range stops {
				stop()
			}
		})
	}
}

// After a day they are removed, but for those that were set anew.
func TestPushersThatWereKeptGoAfterADay(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 1
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 60 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		w.answer("gw", rejects(func(string) bool { return true }))
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(brakedFor - time.Minute)
		w.set(name(0), key(0), "gw")
		if left := w.pushersOf(users...); left != 60 {
			t.Errorf("%d pushers are left", left)
		}
		time.Sleep(2 * time.Minute)
		if left := w.pushersOf(users...); left != 1 {
			t.Errorf("%d pushers are left after a day", left)
		}
	})
}

// The share counts, not the number: of many pushers some are always rejected.
func TestSomeRejectionsOfManyAreNoReasonToKeepThem(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		var users []mxid.UserID
		for i := range 1000 {
			w.set(name(i), key(i), "gw")
			users = append(users, name(i))
		}
		w.notify(d, 1, "!r:h", users...)
		synctest.Wait()
		w.answer("gw", rejects(func(pushkey string) bool { return pushkey[len(pushkey)-1] == '7' }))
		w.notify(d, 2, "!r:h", users...)
		time.Sleep(2 * removeManyAfter)
		if left := w.pushersOf(users...); left != 900 {
			t.Errorf("%d pushers are left", left)
		}
		if s := d.Stats(); s.Braked != 0 {
			t.Errorf("got %+v", s)
		}
	})
}
