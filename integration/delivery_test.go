package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

type testGateway struct {
	receiver.Recorder
	*receiver.Receiver
	url string
}

func newTestGateway(t testing.TB) *testGateway {
	t.Helper()
	g := &testGateway{}
	g.Receiver = receiver.New(g.Add)
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	g.url = server.URL + receiver.Path
	return g
}

func (g *testGateway) wait(t testing.TB, enough func([]receiver.Notification) bool) []receiver.Notification {
	t.Helper()
	timeout := time.After(never)
	for {
		all, more := g.All()
		if enough(all) {
			return all
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("%d notifications have arrived, and no more", len(all))
		}
	}
}

func atLeast(n int) func([]receiver.Notification) bool {
	return func(all []receiver.Notification) bool { return len(all) >= n }
}

func allowLoopback(c pushfx.Config) pushfx.Config {
	c.PusherPolicy.AllowHTTP = true
	c.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	return c
}

func pusherAt(url, pushkey string) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.HTTP, AppDisplayName: "App",
		DeviceDisplayName: "Phone", Lang: "en", Data: `{"url":"` + url + `"}`,
	}
}

func message(n int) module.Event {
	return inRoom(fmt.Sprintf(
		`{"event_id":"$%d","room_id":"!room:x","type":"m.room.message","sender":"%s","content":{"msgtype":"m.text","body":"%d"}}`, n, bob, n))
}

// inRoom returns an event of a room with three members.
func inRoom(event string) module.Event {
	return module.Event{JSON: event, Room: match.Room{MemberCount: 3}}
}

// sendEvent calls Decide and Notify, as a host does.
func sendEvent(ctx context.Context, notifier module.Notifier, e module.Event, users ...mxid.UserID) error {
	members := make([]match.Member, len(users))
	for i, user := range users {
		members[i] = match.Member{User: user}
	}
	decisions, err := notifier.Decide(ctx, e, members)
	if err != nil {
		return err
	}
	return notifier.Notify(ctx, e, decisions)
}

func TestANotificationReachesItsGateway(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, redis.UniversalClient) (module.Notifier, module.PusherService){
		"with fx": func(t *testing.T, client redis.UniversalClient) (n module.Notifier, p module.PusherService) {
			startHost(t, client, pushfx.Delivery, fx.Decorate(allowLoopback), fx.Populate(&n, &p))
			return n, p
		},
		"without fx": func(t *testing.T, client redis.UniversalClient) (module.Notifier, module.PusherService) {
			push, err := pushfx.New(client, allowLoopback(pushfx.DefaultConfig()), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
			if err != nil {
				t.Fatal(err)
			}
			startPush(t, push)
			return push.Notifier, push.Pushers
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := embedded(t)
			notifier, pushers := start(t, client)
			gateway := newTestGateway(t)
			if err := pushers.Set(t.Context(), alice, pusherAt(gateway.url, "key"), pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a repeated event is sent once
				if err := sendEvent(t.Context(), notifier, message(1), alice, bob); err != nil {
					t.Fatal(err)
				}
			}
			if err := sendEvent(t.Context(), notifier, message(2), alice, bob); err != nil {
				t.Fatal(err)
			}
			all := gateway.wait(t, atLeast(2))
			if len(all) != 2 || all[0].EventID != "$1" || all[1].EventID != "$2" || all[0].Text != "1" {
				t.Errorf("got %v", all)
			}
		})
	}
}

func TestCallsOfDeliveryFailClearlyWithoutIt(t *testing.T) {
	t.Parallel()
	const want = "include pushfx.Delivery beside pushfx.Module"
	_, client := embedded(t)
	var notifier module.Notifier
	if err := startable(client, fx.Populate(&notifier)).Err(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	push, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, decide := push.Notifier.Decide(t.Context(), message(1), nil)
	rest, handOver := push.Events.HandOver(t.Context(), module.NewEvent{Event: message(1), Members: []match.Member{{User: alice}}}, "", nil)
	if rest == "" {
		t.Error("a handover loses the event")
	}
	for _, err := range []error{
		decide, errors.New(fault.Details(handOver)), push.Notifier.Notify(t.Context(), message(1), nil), push.Notifier.UpdateBadges(t.Context(), alice),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAHostWithoutDeliveryHasNoKeysOrMetricsOfIt(t *testing.T) {
	t.Parallel()
	server, client := embedded(t)
	registry := prometheus.NewRegistry()
	h := startHost(t, client, fx.Supply(fx.Annotate(registry, fx.As(new(prometheus.Registerer)))))
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	for _, key := range server.Keys() {
		if strings.HasPrefix(key, "delivery") {
			t.Errorf("there is the key %s", key)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "pushfx_delivery") {
			t.Errorf("there is the metric %s", family.GetName())
		}
	}
}

func TestAHostWithAnotherNumberOfShardsDoesNotStart(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	startHost(t, client, pushfx.Delivery)
	app := startable(client, pushfx.Delivery, fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.Delivery.Shards = 64
		return c
	}))
	if err := app.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "its index has 16 shards, not 64") {
		t.Errorf("got %v", err)
	}
}

func TestAHostCanReplaceTheSeamsOfDelivery(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	posted, appended, asked, held := make(chan string, 10), make(chan string, 10), make(chan string, 10), make(chan string, 10)
	var notifier module.Notifier
	var pushers module.PusherService
	startHost(t, client, pushfx.Delivery, fx.Populate(&notifier, &pushers),
		fx.Decorate(
			func(module.Gateway) module.Gateway { return chanGateway(posted) },
			func(q module.DeliveryQueue) module.DeliveryQueue { return chanQueue{q, appended} },
		),
		fx.Supply(fx.Annotate(chanUnread(asked), fx.As(new(module.Unread)))),
		fx.Supply(fx.Annotate(chanAttention(held), fx.As(new(module.Attention)))),
	)
	if err := pushers.Set(t.Context(), alice, pusherAt("https://push.example.org"+receiver.Path, "key"), pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	if err := sendEvent(t.Context(), notifier, message(1), alice); err != nil {
		t.Fatal(err)
	}
	for name, used := range map[string]chan string{"Gateway": posted, "DeliveryQueue": appended, "Unread": asked, "Attention": held} {
		select {
		case <-used:
		case <-time.After(never):
			t.Errorf("the %s of the host is not used", name)
		}
	}
}

type chanAttention chan string

func (c chanAttention) Delay(_ context.Context, devices []module.UserDevice) []time.Duration {
	c <- devices[0].Device
	return nil
}

type chanGateway chan string

func (c chanGateway) Post(_ context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	c <- r.URL
	return module.GatewayAnswer{Status: http.StatusOK}, nil
}

type chanQueue struct {
	module.DeliveryQueue
	used chan string
}

func (c chanQueue) Append(ctx context.Context, additions []module.Addition) []module.Result[module.Appended] {
	c.used <- string(additions[0].User)
	return c.DeliveryQueue.Append(ctx, additions)
}

type chanUnread chan string

func (c chanUnread) States(context.Context, []module.UserEvent) []module.Result[module.UnreadState] {
	c <- "states"
	return nil
}
