package integration

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// The ten lines with which a host includes the module.
func Example_include() {
	app := fx.New(
		pushfx.Module,
		fx.Provide(zap.NewProduction, newRedis, echo.New), // the host's own
		fx.Invoke(fx.Annotate(func(e *echo.Echo, groups []handlers.RouteGroup) {
			for _, group := range groups {
				group.Register(e.Group("/_matrix/client/v3"), handlers.V3, requireUser)
				group.Register(e.Group("/_matrix/client/r0"), handlers.R0, requireUser)
			}
		}, fx.ParamTags(``, pushfx.RouteGroups))),
	)
	_ = app // app.Run()
}

// The client of the host, with the settings that matter.
func newRedis() redis.UniversalClient {
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

// The host's auth middleware says who the user is.
func requireUser(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		session, err := lookUp(c.Request().Header.Get("Authorization"))
		if err != nil {
			return c.JSON(http.StatusUnauthorized, map[string]string{"errcode": "M_UNKNOWN_TOKEN", "error": "Unknown token."})
		}
		who := handlers.Requester{User: mxid.UserID(session.UserID), Device: session.DeviceID}
		c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		return next(c)
	}
}

type session struct{ UserID, DeviceID string }

func lookUp(string) (session, error) { return session{"@alice:example.org", "DEVICE"}, nil }

// Options are set by decorating the config.
func Example_options() {
	_ = fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.Redis.KeyPrefix = "hs1:"
		c.PusherPolicy.AllowHTTP = true // a push gateway in the same network
		c.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		return c
	})
}

// Every interface of package module can be replaced or wrapped.
func Example_replace() {
	_ = fx.Options(
		fx.Replace(fx.Annotate(&myRules{}, fx.As(new(module.RuleStore)))),
		fx.Decorate(func(s module.PusherStore) module.PusherStore { return audited{s} }),
		fx.Provide(pushfx.AsChangeListener(newSyncWaker)),
	)
}

// With a registry and a provider in the container, the module is seen.
func Example_observe() {
	_ = fx.Options(
		fx.Provide(
			fx.Annotate(prometheus.NewRegistry, fx.As(fx.Self()), fx.As(new(prometheus.Registerer))),
			newTracers, // func() trace.TracerProvider
		),
	)
}

func newTracers() oteltrace.TracerProvider { return noop.NewTracerProvider() }

// The host's readiness probe.
type probes struct{ push module.Health }

func (p probes) ready(c echo.Context) error {
	if err := p.push.Healthy(c.Request().Context()); err != nil {
		return c.String(http.StatusServiceUnavailable, "not ready")
	}
	return c.String(http.StatusOK, "ready")
}

type myRules struct{ module.RuleStore }

type audited struct{ module.PusherStore }

func newSyncWaker() *syncWaker { return &syncWaker{waiting: map[mxid.UserID]chan struct{}{}} }

// A listener hears of every change, whichever host instance made it.
type syncWaker struct {
	mu      sync.Mutex
	waiting map[mxid.UserID]chan struct{} // closed when the user's rules change
}

func (w *syncWaker) PushRulesChanged(_ context.Context, user mxid.UserID, _ int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if news, found := w.waiting[user]; found {
		close(news)
		delete(w.waiting, user)
	}
}

// news is closed at the user's next change.
func (w *syncWaker) news(user mxid.UserID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[user] == nil {
		w.waiting[user] = make(chan struct{})
	}
	return w.waiting[user]
}

// homeserver is the part of a host that calls the module.
type homeserver struct {
	push    module.HostService
	changes module.SyncService
	waker   *syncWaker
}

func (h *homeserver) registered(ctx context.Context, user mxid.UserID) error {
	return h.push.EnsureDefaults(ctx, user)
}

func (h *homeserver) loggedOut(ctx context.Context, user mxid.UserID, device string) error {
	return h.push.RemoveDevicePushers(ctx, user, device)
}

func (h *homeserver) loggedOutEverywhere(ctx context.Context, user mxid.UserID) error {
	return h.push.KeepOnlyDevicePushers(ctx, user, "")
}

func (h *homeserver) changedPassword(ctx context.Context, user mxid.UserID, device string) error {
	return h.push.KeepOnlyDevicePushers(ctx, user, device)
}

func (h *homeserver) loggedIn(ctx context.Context, user mxid.UserID, devices []string) error {
	return h.push.RetainDevicePushers(ctx, user, devices...)
}

func (h *homeserver) deactivated(ctx context.Context, user mxid.UserID) error {
	return h.push.ForgetUser(ctx, user)
}

func (h *homeserver) upgradedRoom(ctx context.Context, members []mxid.UserID, oldRoom, newRoom string) error {
	for _, user := range members {
		if err := h.push.CopyRoomRules(ctx, user, oldRoom, newRoom); err != nil {
			return err
		}
	}
	return nil
}

// pushRulesSince is the part of /sync that is about push rules. Since is in the
// sync token, 0 at the first sync; ctx ends with the request's timeout.
func (h *homeserver) pushRulesSince(ctx context.Context, user mxid.UserID, since int64) (event []byte, next int64, err error) {
	for {
		news := h.waker.news(user) // before the look, so that no change is missed
		content, changed, err := h.changes.ContentSince(ctx, user, since)
		switch {
		case err != nil:
			return nil, since, err
		case changed:
			event := content.AppendJSON([]byte(`{"type":"m.push_rules","content":`))
			return append(event, '}'), content.Version, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, since, nil
		}
	}
}

func (h *homeserver) notify(ctx context.Context, members []mxid.UserID) {
	rules, pushers := h.push.Rulesets(ctx, members), h.push.Pushers(ctx, members)
	for _, user := range members {
		if rules[user].Err != nil || pushers[user].Err != nil {
			continue // try this one again later
		}
		deliver(rules[user].Value, pushers[user].Value)
	}
}

func deliver(pushrule.Ruleset, pusher.List) {}

// Default rules of the host's own stand beside those of the specification.
func Example_defaultRules() {
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

// The host tells who is logged in.
func Example_accounts() {
	_ = fx.Provide(fx.Annotate(newSessions, fx.As(new(module.Accounts))))
}

type sessions struct{}

func newSessions() *sessions { return &sessions{} }

func (*sessions) LoggedIn(context.Context, mxid.UserID, string) (bool, error) { return true, nil }

// The module works without fx and echo, too.
func Example_withoutFx() {
	client, log := newRedis(), zap.NewNop()
	authenticate := func(*http.Request) (handlers.Requester, error) { return handlers.Requester{}, handlers.ErrMissingToken }

	push, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{Log: log})
	if err != nil {
		panic(err)
	}
	if err := push.Check(context.Background()); err != nil { // Redis answers, and can do what is asked of it
		panic(err)
	}
	go push.Run(context.Background()) // until the host stops

	http.Handle("/_matrix/client/v3/", push.Handler("/_matrix/client/v3", handlers.V3, authenticate))
	http.Handle("/_matrix/client/r0/", push.Handler("/_matrix/client/r0", handlers.R0, authenticate))
}

func TestTheProbeOfTheReadme(t *testing.T) {
	t.Parallel()
	server, client := embedded(t)
	var p probes
	web := startHost(t, client, fx.Populate(&p.push), fx.Invoke(func(e *echo.Echo) {
		e.GET("/ready", func(c echo.Context) error { return p.ready(c) })
	}))
	if a := web.do("", http.MethodGet, "/ready", ""); a.status != http.StatusOK {
		t.Errorf("got %v", a)
	}
	server.Close()
	if a := web.do("", http.MethodGet, "/ready", ""); a.status != http.StatusServiceUnavailable {
		t.Errorf("got %v", a)
	}
}

// What the README tells a host to do, done in its order.
func TestAHostDoesWhatTheReadmeTells(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	h := &homeserver{waker: newSyncWaker()}
	web := startHost(t, client,
		fx.Provide(pushfx.AsChangeListener(func() *syncWaker { return h.waker })),
		fx.Populate(&h.push, &h.changes),
	)
	ctx, patience := t.Context(), func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), never)
		t.Cleanup(cancel)
		return ctx
	}
	wantNil := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wantNil(h.registered(ctx, alice))
	event, next, err := h.pushRulesSince(patience(), alice, 0)
	wantNil(err)
	if !strings.Contains(string(event), ".m.rule.master") || next == 0 {
		t.Errorf("the first sync: got %s, %d", event, next)
	}
	if a := web.do(alice, http.MethodGet, v3+"/user/"+alice+"/account_data/m.push_rules", ""); !strings.Contains(string(event), a.body) {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := web.do(alice, http.MethodPut, v3+"/user/"+alice+"/account_data/m.push_rules", "{}"); a.status != http.StatusMethodNotAllowed {
		t.Errorf("got %d %s", a.status, a.body)
	}
	timeout, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if event, same, err := h.pushRulesSince(timeout, alice, next); event != nil || same != next || err != nil {
		t.Errorf("a sync without news: got %s, %d, %v", event, same, err)
	}
	web.do(alice, http.MethodPut, v3+"/pushrules/global/room/!old:example.org", `{"actions":[]}`)
	wantNil(h.upgradedRoom(ctx, []mxid.UserID{alice, "@bob:example.org"}, "!old:example.org", "!new:example.org"))
	for !strings.Contains(string(event), "!new:example.org") {
		event, next, err = h.pushRulesSince(patience(), alice, next)
		wantNil(err)
	}
	web.do(alice, http.MethodPost, v3+"/pushers/set", httpPusher("app", "key"))
	count := func() int {
		list := h.push.Pushers(ctx, []mxid.UserID{alice})[alice].Value
		return list.Len()
	}
	wantNil(h.changedPassword(ctx, alice, device))
	wantNil(h.loggedOut(ctx, alice, "OTHER"))
	if count() != 1 {
		t.Error("the device's own pusher is gone")
	}
	wantNil(h.loggedOut(ctx, alice, device))
	if count() != 0 {
		t.Error("the pusher has survived the logout of its device")
	}
	h.notify(ctx, []mxid.UserID{alice})
	wantNil(h.loggedIn(ctx, alice, []string{device}))
	wantNil(h.loggedOutEverywhere(ctx, alice))
	wantNil(h.deactivated(ctx, alice))
	if keys, err := client.Keys(ctx, "*alice*").Result(); err != nil || len(keys) != 0 {
		t.Errorf("left are %q, %v", keys, err)
	}
}
