package pushfx_test

import (
	"context"
	"log"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func Example() {
	fx.New(
		pushfx.Module,
		fx.Provide(zap.NewProduction, echo.New, newRedis), // the host's own
		fx.Invoke(fx.Annotate(serve, fx.ParamTags(``, ``, pushfx.RouteGroups))),
	).Run()
}

func newRedis() redis.UniversalClient {
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true,
		DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second, // leave time for a second try
	})
}

func serve(lc fx.Lifecycle, e *echo.Echo, groups []handlers.RouteGroup) {
	for _, group := range groups {
		group.Register(e.Group("/_matrix/client/v3"), handlers.V3, requireUser)
		group.Register(e.Group("/_matrix/client/r0"), handlers.R0, requireUser)
	}
	lc.Append(fx.StartStopHook(func() (err error) {
		if e.Listener, err = net.Listen("tcp", "127.0.0.1:8010"); err == nil {
			go e.Start("")
		}
		return err // such as a port in use
	}, e.Shutdown))
}

// requireUser is the host's authentication. It tells the module which user sends the request.
func requireUser(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().Header.Get("Authorization") != "Bearer token" {
			return c.JSON(http.StatusUnauthorized, map[string]string{"errcode": "M_UNKNOWN_TOKEN", "error": "Unknown token."})
		}
		who := handlers.Requester{User: "@alice:example.org", Device: "PHONE"}
		c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		return next(c)
	}
}

// What a host calls for each new event, from its outbox.
func newEvent(ctx context.Context, push *pushfx.Push, e module.NewEvent, rest module.Rest) (module.Rest, error) {
	return push.Events.HandOver(ctx, e, rest, func(users []mxid.UserID) {
		log.Print("the event is counted, wake the syncs of ", users)
	})
}

// A host without fx and echo.
func ExampleNew() {
	ctx := context.Background()
	push, err := pushfx.New(newCluster(), pushfx.DefaultConfig(), pushfx.Options{Log: zap.NewExample()})
	if err != nil {
		log.Fatal(err)
	}
	if err := push.Check(ctx); err != nil { // Redis answers and is suitable
		log.Fatal(err)
	}
	go push.Run(ctx) // until the host stops

	matrix := push.Handler(authenticate)
	http.HandleFunc("/_matrix/client/", func(w http.ResponseWriter, r *http.Request) {
		if push.Owns(r) {
			matrix.ServeHTTP(w, r)
			return
		}
		serveOther(w, r) // login, sync and other endpoints
	})
}

// If the host's accounts and listeners use the module's services, the host passes a
// struct and sets its fields later.
func ExampleOptions() {
	host := &seams{}
	push, err := pushfx.New(newCluster(), pushfx.DefaultConfig(), pushfx.Options{
		Accounts: host, Import: host, Listeners: []module.ChangeListener{host},
		Delivery: &pushfx.DeliveryOptions{Unread: host, Attention: host},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := newServer(push.Host, push.Sync)
	host.Accounts, host.ChangeListener, host.ImportSource = server, server, server
	host.Unread, host.Attention = server, server

	go push.Run(context.Background()) // after the fields are set; likewise the first request
}

// With fx an fx.Invoke sets the fields, before the start.
func ExampleModule() {
	host := &seams{}
	fx.New(
		pushfx.Module,
		fx.Provide(zap.NewProduction, newRedis),
		fx.Supply(fx.Annotate(host, fx.As(new(module.Accounts)))),
		fx.Invoke(func(p *pushfx.Push) { host.Accounts = newServer(p.Host, p.Sync) }),
	).Run()
}

// seams are the host's interfaces, nil until the host has built them. Without
// BulkAccounts in the struct, it has none.
type seams struct {
	module.Accounts
	module.ImportSource
	module.ChangeListener
	module.Unread
	module.Attention
}

// newServer builds the host with the module's services.
func newServer(module.HostService, module.SyncService) *server { return &server{} }

// server stands for the host.
type server struct{ seams }

// serveOther stands for the host's own endpoints.
func serveOther(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }

// authenticate is the host's authentication.
func authenticate(r *http.Request) (handlers.Requester, error) {
	if r.Header.Get("Authorization") != "Bearer token" {
		return handlers.Requester{}, handlers.ErrMissingToken
	}
	return handlers.Requester{User: "@alice:example.org", Device: "PHONE"}, nil
}

// newCluster returns the client of a cluster, with the settings that matter.
func newCluster() redis.UniversalClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"},
		ContextTimeoutEnabled:      true,                    // honour deadlines
		DialTimeout:                1200 * time.Millisecond, // leave time for a second try
		DialerRetries:              2,
		ReadTimeout:                time.Second,            // the same; less than DialTimeout
		PoolTimeout:                500 * time.Millisecond, // do not queue for a node that is silent
		ClusterStateReloadInterval: time.Second,            // notice a failover soon
	})
}

// What the host replaces, wraps and adds.
func Example_replace() {
	_ = fx.Options(
		pushfx.Module,
		fx.Replace(fx.Annotate(&myRules{}, fx.As(new(module.RuleStore)))),
		fx.Decorate(func(s module.RuleService) module.RuleService { return audited{s} }),
		fx.Provide(pushfx.AsChangeListener(newWaker)),
		fx.Provide(pushfx.AsPusherListener(newDeviceList)),
		fx.Provide(fx.Annotate(newSessions, fx.As(new(module.Accounts)))),
		fx.Provide(
			fx.Annotate(prometheus.NewRegistry, fx.As(fx.Self()), fx.As(new(prometheus.Registerer))),
			newTracers,
		),
	)
}

// myRules is a store of the host's own; see integration/sqlstore for one.
type myRules struct{ module.RuleStore }

// audited is the module's service, with a log of deletions.
type audited struct{ module.RuleService }

func (a audited) Delete(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) error {
	err := a.RuleService.Delete(ctx, user, kind, id)
	log.Printf("%s deleted a %s rule: %v", user, kind, err)
	return err
}

// waker wakes the syncs of a user.
type waker struct{}

func newWaker() *waker { return &waker{} }

func (*waker) PushRulesChanged(_ context.Context, user mxid.UserID) {}
func (*waker) PushRulesMissed(context.Context)                      {} // wake all syncs

// deviceList shows users their devices.
type deviceList struct{}

func newDeviceList() *deviceList { return &deviceList{} }

func (*deviceList) PushersChanged(_ context.Context, user mxid.UserID) {} // show List of PusherService again

func (*deviceList) PushersMissed(context.Context) {} // for each user who looks at a list

// sessions reports which devices are logged in.
type sessions struct{}

func newSessions() *sessions { return &sessions{} }

func (*sessions) LoggedIn(_ context.Context, user mxid.UserID, device string) (bool, error) {
	return true, nil
}

func newTracers() trace.TracerProvider { return noop.NewTracerProvider() }

// A decorator changes the config. Without fx, change the result of DefaultConfig.
func ExampleConfig() {
	_ = fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.Redis.KeyPrefix = "hs1:"
		c.PusherPolicy.AllowHTTP = true // a push gateway in the same network
		c.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		return c
	})
}

// Polls notify, and the host's GET /versions shows the flags of its features.
func ExampleConfig_features() {
	_ = fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.Features = append(c.Features, pushrule.Polls)
		return c
	})
	_ = func(push *pushfx.Push, unstable map[string]bool) {
		maps.Copy(unstable, push.UnstableFeatures())
	}
}

// Additional default rules of the host.
func ExampleConfig_defaultRules() {
	_ = fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.DefaultRules = append(c.DefaultRules, pushrule.DefaultRule{
			Kind:       pushrule.Underride,
			ID:         ".org.example.rule.poll",
			Actions:    []pushrule.Action{`"notify"`},
			Conditions: []pushrule.Condition{`{"kind":"event_match","key":"type","pattern":"m.poll.start"}`},
			Before:     ".m.rule.message",
		})
		return c
	})
}
