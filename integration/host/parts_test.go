package host

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/pusher"
)

// typedNil is a type of a host that returns a nil pointer as an interface.
type typedNil struct {
	module.Accounts
	module.Gateway
}

func startError(client redis.UniversalClient, options ...fx.Option) error {
	supply := fx.Supply(fx.Annotate(client, fx.As(new(redis.UniversalClient))))
	return fx.New(fx.NopLogger, pushfx.Module, supply, fx.Provide(zap.NewNop), fx.Options(options...)).Err()
}

// A host that includes parts of the module wrongly does not start, and the error names the remedy.
func TestWrongWiringNamesTheRemedy(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	host := func(options ...fx.Option) error {
		supply := fx.Supply(fx.Annotate(client, fx.As(new(redis.UniversalClient))))
		return fx.New(fx.NopLogger, supply, fx.Provide(zap.NewNop), fx.Options(options...)).Err()
	}
	withNew := func(client redis.UniversalClient, o pushfx.Options) error {
		_, err := pushfx.New(client, pushfx.DefaultConfig(), o)
		return err
	}
	registry := prometheus.NewRegistry()
	if err := withNew(client, pushfx.Options{Metrics: registry}); err != nil {
		t.Fatal(err)
	}
	nilListener := func() (module.ChangeListener, error) { return nil, nil }
	nilList := func() (module.PusherListener, error) { return nil, nil }
	const noClient = "there is no Redis client, or it is nil: provide a redis.UniversalClient"
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"Module twice":            {host(pushfx.Module, pushfx.Module), "include pushfx.Module once"},
		"Delivery twice":          {host(pushfx.Module, pushfx.Delivery, pushfx.Delivery), "include pushfx.Delivery once"},
		"Unread twice":            {host(pushfx.Module, pushfx.Unread, pushfx.Unread), "include pushfx.Unread once"},
		"Delivery without Module": {host(pushfx.Delivery), "pushfx: include pushfx.Module, which pushfx.Delivery needs"},
		"Unread without Module":   {host(pushfx.Unread), "pushfx: include pushfx.Module, which pushfx.Unread needs"},
		"a nil ChangeListener":    {withNew(client, pushfx.Options{Listeners: []module.ChangeListener{noWaker{}, nil}}), "pushfx: a ChangeListener is nil: leave it out"},
		"a nil PusherListener":    {withNew(client, pushfx.Options{PusherListeners: []module.PusherListener{nil}}), "pushfx: a PusherListener is nil: leave it out"},
		"fx, a nil ChangeListener": {
			host(pushfx.Module, fx.Provide(pushfx.AsChangeListener(nilListener))), "pushfx: a ChangeListener is nil: leave it out",
		},
		"fx, a nil PusherListener": {
			host(pushfx.Module, fx.Provide(pushfx.AsPusherListener(nilList))), "pushfx: a PusherListener is nil: leave it out",
		},
		"an UnreadService without Unread": {
			host(pushfx.Module, fx.Invoke(func(module.UnreadService) {})), "include pushfx.Unread beside pushfx.Module, or set Options.Unread",
		},
		"a Notifier without Delivery": {
			host(pushfx.Module, fx.Invoke(func(module.Notifier) {})), "include pushfx.Delivery beside pushfx.Module, or set Options.Delivery",
		},
		"an EventService without Delivery": {
			host(pushfx.Module, pushfx.Unread, fx.Invoke(func(module.EventService) {})), "include pushfx.Delivery beside pushfx.Module, or set Options.Delivery",
		},
		"NotifiedEvents without Unread": {
			host(pushfx.Module, fx.Supply(fx.Annotate(noEvents{}, fx.As(new(module.NotifiedEvents))))), "include pushfx.Unread, or provide no NotifiedEvents",
		},
		"a supplied Config":                   {host(pushfx.Module, fx.Supply(pushfx.DefaultConfig())), "changeConfigWithFxReplaceOrDecorate"},
		"a supplied Config before the Module": {host(fx.Supply(pushfx.DefaultConfig()), pushfx.Module), "changeConfigWithFxReplaceOrDecorate"},
		"a nil *redis.Client": {
			fx.New(fx.NopLogger, pushfx.Module, fx.Provide(zap.NewNop, func() redis.UniversalClient { return (*redis.Client)(nil) })).Err(),
			noClient,
		},
		"New with a nil *redis.ClusterClient": {withNew((*redis.ClusterClient)(nil), pushfx.Options{}), noClient},
		"nil Accounts": {
			withNew(client, pushfx.Options{Accounts: (*typedNil)(nil)}), "pushfx: the Accounts is a nil *host.typedNil: leave it out",
		},
		"a nil Gateway": {
			withNew(client, pushfx.Options{Delivery: &pushfx.DeliveryOptions{Gateway: (*typedNil)(nil)}}), "pushfx: the Gateway is a nil *host.typedNil",
		},
		"a nil Channel": {
			withNew(client, pushfx.Options{Delivery: &pushfx.DeliveryOptions{Channels: []module.Channel{nil}}}), "pushfx: a Channel is nil: leave it out",
		},
		"fx, nil Accounts": {
			startError(client, fx.Provide(func() module.Accounts { return (*typedNil)(nil) })), "pushfx: the Accounts is a nil *host.typedNil",
		},
		"New twice with one registerer": {
			withNew(client, pushfx.Options{Metrics: registry}), "give each Push a prometheus.Registerer of its own",
		},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, test.err, test.want)
		}
	}
	for name, err := range map[string]error{
		"all":          host(pushfx.Delivery, pushfx.Unread, pushfx.Module),
		"Unread alone": host(pushfx.Module, pushfx.Unread),

		"events without counts": host(pushfx.Module, pushfx.Delivery, fx.Invoke(func(module.EventService) {})),
	} {
		if err != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

type (
	noAccounts  struct{ module.Accounts }
	noWaker     struct{ module.ChangeListener }
	noList      struct{ module.PusherListener }
	noAttention struct{ module.Attention }
	noEvents    struct{ module.NotifiedEvents }
	ownGateway  struct{ module.Gateway }
	ownChannel  struct{ module.Channel }
)

func (ownChannel) Kind() pusher.Kind { return "com.example.sms" }

func (ownChannel) CheckPusher(pusher.Pusher) error { return nil }

// The log of the start names what the host has replaced and added.
func TestTheStartLogsTheHostsParts(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	ready := func(logs *observer.ObservedLogs) string {
		t.Helper()
		lines := logs.FilterMessage("pushfx is ready").AllUntimed()
		if len(lines) != 1 || lines[0].Level != zapcore.InfoLevel {
			t.Fatalf("logged %v", logs.All())
		}
		fields := lines[0].ContextMap()
		return fmt.Sprint(fields["host_parts"], " ", fields["delivery"], " ", fields["sends_to"], " ", fields["unread"])
	}
	started := func(options ...fx.Option) string {
		t.Helper()
		core, logs := observer.New(zapcore.InfoLevel)
		app := hosttest.Startable(client, append(options, fx.Replace(zap.New(core)))...)
		if err := app.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer app.Stop(t.Context())
		return ready(logs)
	}
	if got, want := started(), "[] false [] false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got := started(
		pushfx.Delivery, pushfx.Unread,
		fx.Replace(fx.Annotate(newMemoryRules(), fx.As(new(module.RuleStore)))),
		fx.Decorate(func(s module.PusherService) module.PusherService { return unlistedPushers{s} }),
		fx.Decorate(func(g module.Gateway) module.Gateway { return ownGateway{g} }),
		fx.Supply(
			fx.Annotate(noAccounts{}, fx.As(new(module.Accounts))),
			fx.Annotate(noEvents{}, fx.As(new(module.NotifiedEvents))),
		),
		fx.Provide(pushfx.AsChangeListener(func() noWaker { return noWaker{} }), pushfx.AsChannel(func() ownChannel { return ownChannel{} })),
	)
	const want = "[Accounts host.noAccounts ChangeListener host.noWaker Channel host.ownChannel Gateway host.ownGateway " +
		"NotifiedEvents host.noEvents PusherService host.unlistedPushers RuleStore *host.memoryRules] true [com.example.sms http] true"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}

	core, logs := observer.New(zapcore.InfoLevel)
	push, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{
		Log: zap.New(core), PusherListeners: []module.PusherListener{noList{}},
		Stores: module.Stores{Pushkeys: noPushkeys{}}, Delivery: &pushfx.DeliveryOptions{Attention: noAttention{}},
	})
	if err == nil {
		err = push.Check(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ready(logs), "[Attention host.noAttention PusherListener host.noList PushkeyIndex host.noPushkeys] true [http] false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Without unread counts the calls of Unread name the remedy. A second Run, and a Run after the end, do nothing but log.
func TestAPushWithoutUnreadCountsAndASecondRun(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	core, logs := observer.New(zapcore.InfoLevel)
	push, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	if err := push.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, ofRooms := push.Unread.Rooms(t.Context(), hosttest.Alice)
	_, ofList := push.Unread.List(t.Context(), hosttest.Alice, module.UnreadQuery{})
	for name, err := range map[string]error{
		"Add": push.Unread.Add(t.Context(), module.Place{}, nil), "Read": push.Unread.Read(t.Context(), hosttest.Alice, "!r", module.AllThreads, 1),
		"Forget": push.Unread.Forget(t.Context(), "!r", 1, nil), "Retain": push.Unread.Retain(t.Context(), hosttest.Alice),
		"Rooms": ofRooms, "List": ofList, "States": push.Unread.States(t.Context(), make([]module.UserEvent, 1))[0].Err,
	} {
		if err == nil || !strings.Contains(err.Error(), "set Options.Unread") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	push.Run(ended)
	push.Run(t.Context()) // returns
	if lines := logs.FilterMessage("Push.Run was called twice, the second call does nothing").All(); len(lines) != 1 {
		t.Errorf("got %v", logs.All())
	}
	for _, line := range logs.All() {
		if line.LoggerName != "push" {
			t.Errorf("%q is a line of %q", line.Message, line.LoggerName)
		}
	}
}
