package host

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pusher"
)

func atLeast(n int) func([]receiver.Notification) bool {
	return func(all []receiver.Notification) bool { return len(all) >= n }
}

func TestANotificationReachesItsGateway(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, redis.UniversalClient) (module.Notifier, module.PusherService){
		"with fx": func(t *testing.T, client redis.UniversalClient) (n module.Notifier, p module.PusherService) {
			hosttest.StartHost(t, client, pushfx.Delivery, fx.Decorate(hosttest.AllowLoopback), fx.Populate(&n, &p))
			return n, p
		},
		"without fx": func(t *testing.T, client redis.UniversalClient) (module.Notifier, module.PusherService) {
			push, err := pushfx.New(client, hosttest.AllowLoopback(pushfx.DefaultConfig()), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
			if err != nil {
				t.Fatal(err)
			}
			hosttest.StartPush(t, push)
			return push.Notifier, push.Pushers
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := hosttest.Embedded(t)
			notifier, pushers := start(t, client)
			gateway := hosttest.NewGateway(t)
			if err := pushers.Set(t.Context(), hosttest.Alice, hosttest.PusherAt(gateway.URL, "key"), pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a repeated event is sent once
				if err := hosttest.SendEvent(t.Context(), notifier, hosttest.Message(1), hosttest.Alice, hosttest.Bob); err != nil {
					t.Fatal(err)
				}
			}
			if err := hosttest.SendEvent(t.Context(), notifier, hosttest.Message(2), hosttest.Alice, hosttest.Bob); err != nil {
				t.Fatal(err)
			}
			all := gateway.Wait(t, atLeast(2))
			if len(all) != 2 || all[0].EventID != "$1" || all[1].EventID != "$2" || all[0].Text != "1" {
				t.Errorf("got %v", all)
			}
		})
	}
}

func TestCallsOfDeliveryFailClearlyWithoutIt(t *testing.T) {
	t.Parallel()
	const want = "include pushfx.Delivery beside pushfx.Module"
	_, client := hosttest.Embedded(t)
	var notifier module.Notifier
	if err := hosttest.Startable(client, fx.Populate(&notifier)).Err(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	push, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, decide := push.Notifier.Decide(t.Context(), hosttest.Message(1), nil)
	rest, handOver := push.Events.HandOver(t.Context(), module.NewEvent{Event: hosttest.Message(1), Members: []match.Member{{User: hosttest.Alice}}}, "", nil)
	if rest == "" {
		t.Error("a handover loses the event")
	}
	for _, err := range []error{
		decide, errors.New(fault.Details(handOver)), push.Notifier.Notify(t.Context(), hosttest.Message(1), nil), push.Notifier.UpdateBadges(t.Context(), hosttest.Alice),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAHostWithoutDeliveryHasNoKeysOrMetricsOfIt(t *testing.T) {
	t.Parallel()
	server, client := hosttest.Embedded(t)
	registry := prometheus.NewRegistry()
	h := hosttest.StartHost(t, client, fx.Supply(fx.Annotate(registry, fx.As(new(prometheus.Registerer)))))
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
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
	_, client := hosttest.Embedded(t)
	hosttest.StartHost(t, client, pushfx.Delivery)
	app := hosttest.Startable(client, pushfx.Delivery, fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.Delivery.Shards = 64
		return c
	}))
	if err := app.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "its index has 16 shards, not 64") {
		t.Errorf("got %v", err)
	}
}

func TestAHostCanReplaceTheSeamsOfDelivery(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	posted, appended, asked, held := make(chan string, 10), make(chan string, 10), make(chan string, 10), make(chan string, 10)
	var notifier module.Notifier
	var pushers module.PusherService
	hosttest.StartHost(t, client, pushfx.Delivery, fx.Populate(&notifier, &pushers),
		fx.Decorate(
			func(module.Gateway) module.Gateway { return hosttest.ChanGateway(posted) },
			func(q module.DeliveryQueue) module.DeliveryQueue { return chanQueue{q, appended} },
		),
		fx.Supply(fx.Annotate(chanUnread(asked), fx.As(new(module.Unread)))),
		fx.Supply(fx.Annotate(chanAttention(held), fx.As(new(module.Attention)))),
	)
	if err := pushers.Set(t.Context(), hosttest.Alice, hosttest.PusherAt("https://push.example.org"+receiver.Path, "key"), pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	if err := hosttest.SendEvent(t.Context(), notifier, hosttest.Message(1), hosttest.Alice); err != nil {
		t.Fatal(err)
	}
	for name, used := range map[string]chan string{"Gateway": posted, "DeliveryQueue": appended, "Unread": asked, "Attention": held} {
		select {
		case <-used:
		case <-time.After(hosttest.Never):
			t.Errorf("the %s of the host is not used", name)
		}
	}
}

type chanAttention chan string

func (c chanAttention) Delay(_ context.Context, devices []module.UserDevice) []time.Duration {
	c <- devices[0].Device
	return nil
}

type chanQueue struct {
	module.DeliveryQueue
	used chan string
}

func (c chanQueue) Append(ctx context.Context, additions []module.AppendRequest) []module.Result[module.Appended] {
	c.used <- string(additions[0].User)
	return c.DeliveryQueue.Append(ctx, additions)
}

type chanUnread chan string

func (c chanUnread) States(context.Context, []module.UserEvent) []module.Result[module.UnreadState] {
	c <- "states"
	return nil
}
