package delivery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

func rejecting(when func(sent) bool) func(context.Context, sent) (module.GatewayAnswer, error) {
	return func(_ context.Context, s sent) (module.GatewayAnswer, error) {
		answer := module.GatewayAnswer{Status: 200}
		if when(s) {
			answer.Rejected = []string{s.pushkey}
		}
		return answer, nil
	}
}

func all(sent) bool { return true }

func TestARejectedPusherIsRemoved(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
			time.Sleep(time.Second) // both are in the backlog by then
			return rejecting(all)(ctx, s)
		})
		w.set(name1, "key", "gw")
		d, stop := w.host()
		defer stop()
		w.notify(d, 1, "!r:h", name1)
		w.notify(d, 2, "!r:h", name1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(w.removed) != 1 || w.queue.Waiting() != 0 || len(w.all()) != 1 {
			t.Errorf("removed %v, %d are left, %d posts", w.removed, w.queue.Waiting(), len(w.all()))
		}
		w.set(name1, "key", "gw")
		w.answer("gw", rejecting(func(s sent) bool { return s.pushkey == "another" }))
		w.notify(d, 3, "!r:h", name1)
		synctest.Wait()
		if len(w.removed) != 1 {
			t.Error("removed for another pushkey")
		}
		w.want("key", 1, 3)
	})
}

func TestARejectionKeepsAPusherThatWasSetAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		random := rand.New(rand.NewPCG(1, 3))
		var rejects atomic.Bool
		rejects.Store(true)
		var mu sync.Mutex
		pause := func() {
			mu.Lock()
			d := time.Duration(random.Int64N(int64(20 * time.Millisecond)))
			mu.Unlock()
			time.Sleep(d)
		}
		w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
			pause()
			return rejecting(func(sent) bool { return rejects.Load() })(ctx, s)
		})
		d, stop := w.host()
		defer stop()
		for e := range 300 {
			user := name(e)
			w.set(user, key(e), "gw")
			w.notify(d, e, "!r:h", user)
			pause()
			w.mu.Lock()
			before := len(w.removed)
			w.mu.Unlock()
			w.set(user, key(e), "gw")
			rejects.Store(false)
			time.Sleep(3 * time.Second)
			w.mu.Lock()
			removed := w.removed[before:]
			w.mu.Unlock()
			for _, gone := range removed {
				if gone == user {
					t.Fatalf("the fresh pusher of %s was removed", user)
				}
			}
			rejects.Store(true)
		}
	})
}

func TestManyRejectionsRemoveNoMore(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", rejecting(func(s sent) bool { return s.pushkey[:3] == "bad" }))
		var members []mxid.UserID
		for i := range 200 {
			members = append(members, name(i))
			w.setApp(name(i), "bad", fmt.Sprint("bad", i), "gw")
			w.setApp(name(i), "good", fmt.Sprint("good", i), "gw")
		}
		d, stop := w.host()
		defer stop()
		w.notify(d, 1, "!r:h", members...)
		time.Sleep(time.Minute)
		synctest.Wait()
		// Rejections of requests in flight may remove pushers, too.
		if n := len(w.removed); n >= 4+4 || d.Stats().RemovalsStopped != 1 || w.reported(observe.TooManyRejections) != 1 || w.reported(observe.PusherRemoved) != n {
			t.Errorf("%d removed, stats %+v, reports %v", n, d.Stats(), w.reports)
		}
		for i := range 200 {
			w.want(fmt.Sprint("good", i), 1)
		}
		// When the gateway knows the app again, the backlogs are sent.
		w.answer("gw", always(200))
		w.wait(11*time.Minute, func() bool { return w.queue.Waiting() == 0 })
		if got := d.Stats().RemovalsStopped; got != 0 {
			time.Sleep(21 * time.Minute)
			w.notify(d, 2, "!r:h", members...)
			synctest.Wait()
			if got := d.Stats().RemovalsStopped; got != 0 {
				t.Errorf("removals of %d are stopped still", got)
			}
		}
	})
}

func TestAFewOldPhonesAreRemoved(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", rejecting(func(s sent) bool { return s.pushkey == "key7" || s.pushkey == "key8" }))
		var members []mxid.UserID
		for i := range 50 {
			members = append(members, name(i))
			w.set(name(i), key(i), "gw")
		}
		d, stop := w.host()
		defer stop()
		w.notify(d, 1, "!r:h", members...)
		w.wait(3*time.Second, func() bool { return w.queue.Waiting() == 0 })
		if len(w.removed) != 2 {
			t.Errorf("removed %v", w.removed)
		}
	})
}
