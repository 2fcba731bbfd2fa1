package host

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread"
)

// unreadHost is a host with unread counts and delivery.
type unreadHost struct {
	*pushfx.Push
	client  redis.UniversalClient
	gateway *hosttest.Gateway
}

func newUnreadHost(t *testing.T, with func(*pushfx.Config, *pushfx.Options)) *unreadHost {
	_, client := hosttest.Embedded(t)
	cfg, o := hosttest.AllowLoopback(pushfx.DefaultConfig()), pushfx.Options{
		Delivery: &pushfx.DeliveryOptions{}, Unread: &pushfx.UnreadOptions{Events: hosttest.RoomEvents{1: `{"event_id":"$1"}`}},
	}
	cfg.Delivery.BadgeDelay = 0
	if with != nil {
		with(&cfg, &o)
	}
	push, err := pushfx.New(client, cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	hosttest.StartPush(t, push)
	h := &unreadHost{push, client, hosttest.NewGateway(t)}
	if err := push.Pushers.Set(t.Context(), hosttest.Alice, hosttest.PusherAt(h.gateway.URL, "key"), pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	return h
}

// send calls Decide, Add and Notify.
func (h *unreadHost) send(t *testing.T, n int) {
	t.Helper()
	e := hosttest.Message(n)
	e.Position, e.Thread = int64(n), module.MainThread
	decisions, err := h.Notifier.Decide(t.Context(), e, []match.Member{{User: hosttest.Alice}})
	if err == nil {
		err = h.Unread.Add(t.Context(), module.Place{Room: "!room:x", Position: e.Position, Thread: e.Thread, Sender: hosttest.Bob}, decisions)
	}
	if err == nil {
		err = h.Notifier.Notify(t.Context(), e, decisions)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (h *unreadHost) read(t *testing.T, position int64) {
	t.Helper()
	if err := h.Unread.Read(t.Context(), hosttest.Alice, "!room:x", module.AllThreads, position); err != nil {
		t.Fatal(err)
	}
	if err := h.Notifier.UpdateBadges(t.Context(), hosttest.Alice); err != nil {
		t.Fatal(err)
	}
}

// wantSent plays until each notification that the gateway accepted has counts: it waits for
// them for 200 ms only, which a busy machine may exceed. Want has the event and the unread
// count of each.
func wantSent(t *testing.T, want []string, play func() []receiver.Notification) {
	t.Helper()
	var got []string
	for range 5 {
		got = nil
		late := false
		for _, n := range play() {
			switch {
			case n.Status != http.StatusOK:
			case n.Counts == nil || n.Counts.Unread == nil:
				got, late = append(got, n.EventID+" without counts"), true
			default:
				got = append(got, fmt.Sprint(n.EventID, " ", *n.Counts.Unread))
			}
		}
		if !late {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBadgesFollowUnreadCounts(t *testing.T) {
	t.Parallel()
	for name, byNumber := range map[string]bool{"rooms": false, "notifications": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := []string{"$1 1", "$2 1", " 0"}
			if byNumber {
				want[1] = "$2 2"
			}
			wantSent(t, want, func() []receiver.Notification {
				h := newUnreadHost(t, func(c *pushfx.Config, _ *pushfx.Options) { c.Unread.CountNotifications = byNumber })
				for n := range 2 {
					h.send(t, n+1)
					h.gateway.Wait(t, atLeast(n+1))
				}
				h.read(t, 2)
				return h.gateway.Wait(t, atLeast(3))
			})
		})
	}
}

// A gateway fails, and comes back after an event was redacted and another one was read.
func TestRedactedEventsAreNotSentLater(t *testing.T) {
	t.Parallel()
	wantSent(t, []string{"$2 1", "$4 1"}, func() []receiver.Notification {
		h := newUnreadHost(t, func(c *pushfx.Config, _ *pushfx.Options) { c.Delivery.BadgeDelay = time.Minute })
		h.gateway.Make(receiver.Trouble{Status: http.StatusBadGateway})
		for n := range 4 {
			h.send(t, n+1)
		}
		h.gateway.Wait(t, atLeast(1))
		if err := h.Unread.Forget(t.Context(), "!room:x", 3, []mxid.UserID{hosttest.Alice}); err != nil {
			t.Fatal(err)
		}
		h.read(t, 1)
		for range 4 * unread.MaxOps { // a compaction keeps what was redacted
			if err := h.Unread.Read(t.Context(), hosttest.Alice, "!room:x", module.AllThreads, 1); err != nil {
				t.Fatal(err)
			}
		}
		h.gateway.Make(receiver.Trouble{})
		return h.gateway.Wait(t, func(all []receiver.Notification) bool {
			return slices.ContainsFunc(all, func(n receiver.Notification) bool { return n.Status == http.StatusOK && n.EventID == "$4" })
		})
	})
}

func TestNotificationsAreServedWithTheHostsEvents(t *testing.T) {
	t.Parallel()
	for name, has := range map[string]bool{"with events": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newUnreadHost(t, func(_ *pushfx.Config, o *pushfx.Options) {
				if !has {
					o.Unread.Events = nil
				}
			})
			h.send(t, 1)
			r := httptest.NewRequest(http.MethodGet, hosttest.V3+"/notifications", nil)
			if h.Owns(r) != has || len(h.Groups) != map[bool]int{true: 4, false: 3}[has] {
				t.Errorf("owned is %t, %d groups", h.Owns(r), len(h.Groups))
			}
		})
	}
}

func TestForgetUserDeletesUnreadCounts(t *testing.T) {
	t.Parallel()
	h := newUnreadHost(t, nil)
	h.send(t, 1)
	key := stored.Keys{}.Unread(hosttest.Alice)
	if n := h.client.Exists(t.Context(), key).Val(); n != 1 {
		t.Fatalf("%d keys %s", n, key)
	}
	if err := h.Host.ForgetUser(t.Context(), hosttest.Alice); err != nil {
		t.Fatal(err)
	}
	if n := h.client.Exists(t.Context(), key).Val(); n != 0 {
		t.Errorf("%s is still there", key)
	}
}

type noCounts struct{ module.UnreadService }

func (noCounts) Rooms(context.Context, mxid.UserID, ...string) (map[string]module.RoomCounts, error) {
	return map[string]module.RoomCounts{"!wrapped": {}}, nil
}

func (noCounts) States(context.Context, []module.UserEvent) []module.Result[module.UnreadState] {
	return []module.Result[module.UnreadState]{{Value: module.UnreadState{Counts: &module.Counts{Unread: 77}}}}
}

// A host with fx replaces the store and wraps the service. Delivery and the endpoint use
// the wrapped one, and ForgetUser the host's store.
func TestUnreadWithFx(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	memory := storetest.NewMemory()
	var badges module.Unread
	var push *pushfx.Push
	var users module.HostService
	h, registry := hosttest.StartMeasured(t, client, pushfx.Delivery, pushfx.Unread, fx.Populate(&badges, &push, &users),
		fx.Provide(func() module.NotifiedEvents { return hosttest.RoomEvents{1: `{"event_id":"$1"}`} }),
		fx.Decorate(hosttest.AllowLoopback),
		fx.Replace(fx.Annotate(memory.Unread(), fx.As(new(module.UnreadStore)))),
		fx.Decorate(func(s module.UnreadService) module.UnreadService { return noCounts{s} }),
	)
	host := &unreadHost{Push: push, client: client}
	host.send(t, 1)
	if len(memory.Texts[hosttest.Alice]) != 1 {
		t.Errorf("the host's store has %q", memory.Texts)
	}
	if counts, err := push.Unread.Rooms(t.Context(), hosttest.Alice); err != nil || len(counts) != 1 || counts["!wrapped"].Threads != nil {
		t.Errorf("got %v, error %v", counts, err)
	}
	if got := badges.States(t.Context(), []module.UserEvent{{User: hosttest.Alice}})[0].Value.Counts.Unread; got != 77 {
		t.Errorf("the badge is %d, want the wrapped one", got)
	}
	if a := h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/notifications", ""); a.Status != http.StatusOK || !strings.Contains(a.Body, `"event":{"event_id":"$1"},"profile_tag":"","read":false,"room_id":"!room:x"`) {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if err := users.ForgetUser(t.Context(), hosttest.Alice); err != nil || len(memory.Texts[hosttest.Alice]) != 0 {
		t.Errorf("after ForgetUser: %q, error %v", memory.Texts, err)
	}
	hosttest.Scrape(t, registry).Want(t, hosttest.Scraped{"pushfx_unread_events_total{event=appended}": 2})
}
