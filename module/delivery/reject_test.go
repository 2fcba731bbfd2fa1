package delivery

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
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
			time.Sleep(time.Second) // both wait by then
			return rejecting(all)(ctx, s)
		})
		w.set(name1, "key", "gw")
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		w.notify(d, 2, "!r:h", name1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(w.removed) != 1 || w.queue.Waiting() != 0 || len(w.all()) != 1 {
			t.Errorf("removed %v, %d are left, %d posts", w.removed, w.queue.Waiting(), len(w.all()))
		}
		if want := (RejectedError{name1, PusherID(name1, pusher.Key{AppID: "app", Pushkey: "key"}), "app", "", "https://gw:443"}); !slices.Equal(w.rejected, []RejectedError{want}) {
			t.Errorf("reported %v, want %v", w.rejected, want)
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

// The pusher is set again while the request is in flight that is answered with a rejection.
func TestARejectionKeepsAPusherThatWasSetAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		n := 0
		w.answer("gw", func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
			n++
			time.Sleep(100 * time.Millisecond)
			return rejecting(func(sent) bool { return n == 1 })(ctx, s)
		})
		w.set(name1, "key", "gw")
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(50 * time.Millisecond)
		w.set(name1, "key", "gw")
		w.wait(time.Second, func() bool { return w.queue.Waiting() == 0 })
		w.want("key", 1, 1)
		if len(w.removed) > 0 {
			t.Errorf("removed %v", w.removed)
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
		d := w.host()
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
		// When the gateway knows the app again, what waits is sent.
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
