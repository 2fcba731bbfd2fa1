package host

import (
	"context"
	"sync/atomic"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

type countedNotifier struct {
	module.Notifier
	calls *atomic.Int64
}

func (n countedNotifier) Notify(ctx context.Context, e module.Event, d module.Decisions) error {
	n.calls.Add(1)
	return n.Notifier.Notify(ctx, e, d)
}

type countedUnread struct {
	module.UnreadService
	calls *atomic.Int64
}

func (u countedUnread) Add(ctx context.Context, at module.Place, d module.Decisions) error {
	u.calls.Add(1)
	return u.UnreadService.Add(ctx, at, d)
}

type countedEvents struct {
	module.EventService
	calls *atomic.Int64
}

func (s countedEvents) HandOver(ctx context.Context, e module.NewEvent, rest module.Rest, shown func([]mxid.UserID)) (module.Rest, error) {
	s.calls.Add(1)
	return s.EventService.HandOver(ctx, e, rest, shown)
}

// A host wraps the parts that hand events over. Push.Events and the container's EventService use the wrapped ones.
func TestEventsUseTheHostsNotifierAndUnreadService(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"container", "Push"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			_, client := hosttest.Embedded(t)
			var notifies, adds, events atomic.Int64
			var push *pushfx.Push
			var service module.EventService
			h := hosttest.StartHost(t, client, pushfx.Delivery, pushfx.Unread, fx.Decorate(
				hosttest.AllowLoopback,
				func(n module.Notifier) module.Notifier { return countedNotifier{n, &notifies} },
				func(u module.UnreadService) module.UnreadService { return countedUnread{u, &adds} },
				func(s module.EventService) module.EventService { return countedEvents{s, &events} },
			), fx.Populate(&push, &service))
			h.Do(hosttest.Alice, "GET", hosttest.V3+"/pushrules/", "")
			if from == "Push" {
				service = push.Events
			}
			e := hosttest.Message(1)
			e.Position = 1
			rest, err := service.HandOver(t.Context(), module.NewEvent{Event: e, Members: []match.Member{{User: hosttest.Alice}}}, "", nil)
			if rest != "" || err != nil {
				t.Fatal(rest, err)
			}
			if notifies.Load() != 1 || adds.Load() != 1 || events.Load() != 1 {
				t.Errorf("the host's Notifier got %d calls, its UnreadService %d, its EventService %d, want 1 each", notifies.Load(), adds.Load(), events.Load())
			}
		})
	}
}
