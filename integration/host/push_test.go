package host

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// byToken authenticates requests as a net/http host does. The token is the user id.
func byToken(r *http.Request) (handlers.Requester, error) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return handlers.Requester{}, handlers.ErrMissingToken
	}
	return handlers.Requester{User: mxid.UserID(token), Device: hosttest.Device}, nil
}

func ask(h http.Handler, user, method, path, body string) (status int, answer string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestAHostWithoutFxAndEcho(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	registry := prometheus.NewRegistry()
	late, listener := make(hosttest.Recorder, 1), &struct{ module.ChangeListener }{}
	push, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{
		Log: zap.NewNop(), Metrics: registry, Listeners: []module.ChangeListener{listener},
	})
	if err != nil {
		t.Fatal(err)
	}
	listener.ChangeListener = late
	hosttest.StartPush(t, push)
	mux, matrix := http.NewServeMux(), push.Handler(byToken)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if push.Owns(r) {
			matrix.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusTeapot)
	})
	for _, test := range []struct {
		user, method, path string
		status             int
		begins             string
	}{
		{hosttest.Alice, http.MethodGet, hosttest.V3 + "/pushrules/global/", 200, `{"override":`},
		{hosttest.Alice, http.MethodGet, hosttest.R0 + "/pushrules/global/", 200, `{"global":{"override":`},
		{hosttest.Alice, http.MethodGet, hosttest.V3 + "/pushers", 200, `{"pushers":[]}`},
		{hosttest.Alice, http.MethodGet, hosttest.V3 + "/user/" + hosttest.Alice + "/account_data/m.push_rules", 200, `{"global":`},
		{"", http.MethodGet, hosttest.V3 + "/pushrules/", 401, `{"errcode":"M_MISSING_TOKEN"`},
		{"", http.MethodGet, hosttest.V3 + "/pushers/else", 404, `{"errcode":"M_UNRECOGNIZED"`},
		{"", http.MethodGet, hosttest.V3 + "/login", http.StatusTeapot, ""}, // the host's
	} {
		if status, body := ask(mux, test.user, test.method, test.path, ""); status != test.status || !strings.HasPrefix(body, test.begins) {
			t.Errorf("%s %s: got %d %s, want %d %s...", test.method, test.path, status, body, test.status, test.begins)
		}
	}
	if received := <-late; received != hosttest.Alice && received != hosttest.AllMissed {
		t.Errorf("the listener received %s", received)
	}
	if families, err := registry.Gather(); err != nil || len(families) == 0 {
		t.Errorf("got %d metrics, %v", len(families), err)
	}
	if err := push.Health.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNewRefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	taken := prometheus.NewRegistry()
	if _, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{Metrics: taken}); err != nil {
		t.Fatal(err)
	}
	var bad pushfx.Config
	for want, try := range map[string]func() (*pushfx.Push, error){
		"there is no Redis client": func() (*pushfx.Push, error) { return pushfx.New(nil, pushfx.DefaultConfig(), pushfx.Options{}) },
		"pushfx: invalid config":   func() (*pushfx.Push, error) { return pushfx.New(client, bad, pushfx.Options{}) },
		"pushfx: metrics: ": func() (*pushfx.Push, error) {
			return pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{Metrics: taken})
		},
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

type watchedRules struct {
	module.RuleStore
	watches *atomic.Int32
}

func (r watchedRules) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	r.watches.Add(1)
	return r.RuleStore.Watch(ctx, watching, changed)
}

// Background work runs in each kind of host, also if the host replaces parts or uses only some services.
func TestBackgroundWorkRunsInEveryHost(t *testing.T) {
	stores := func(watches *atomic.Int32) module.Stores {
		return module.Stores{
			Rules: watchedRules{newMemoryRules(), watches}, Pushers: noPushers{}, Pushkeys: noPushkeys{},
		}
	}
	withFx := func(options ...fx.Option) func(*testing.T, *atomic.Int32) {
		return func(t *testing.T, watches *atomic.Int32) {
			s := stores(watches)
			app := fx.New(fx.NopLogger, pushfx.Module, fx.Provide(zap.NewNop),
				fx.Replace(
					fx.Annotate(s.Rules, fx.As(new(module.RuleStore))),
					fx.Annotate(s.Pushers, fx.As(new(module.PusherStore))),
					fx.Annotate(s.Pushkeys, fx.As(new(module.PushkeyIndex))),
				), fx.Options(options...))
			if err := app.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if err := app.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, host := range map[string]func(*testing.T, *atomic.Int32){
		"a host that asks for nothing":           withFx(),
		"a host that asks for HostService alone": withFx(fx.Invoke(func(module.HostService) {})),
		"a host that replaces PusherService":     withFx(fx.Replace(fx.Annotate(unlistedPushers{}, fx.As(new(module.PusherService))))),
		"a host without fx": func(t *testing.T, watches *atomic.Int32) {
			push, err := pushfx.New(nil, pushfx.DefaultConfig(), pushfx.Options{Stores: stores(watches)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := push.Check(ctx); err != nil {
				t.Fatal(err)
			}
			push.Run(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var watches atomic.Int32
				host(t, &watches)
				if watches.Load() == 0 {
					t.Error("no watch of changes in a minute")
				}
			})
		})
	}
}

type countingRules struct {
	module.RuleService
	reads *atomic.Int32
}

func (c countingRules) Content(ctx context.Context, user mxid.UserID) (module.Content, error) {
	c.reads.Add(1)
	return c.RuleService.Content(ctx, user)
}

// Reads of single users by endpoints, HostService and SyncService go through a wrapped RuleService; bulk reads go
// to the stores.
func TestADecoratedRuleServiceGetsReadsOfSingleUsers(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	var reads atomic.Int32
	var host module.HostService
	var sync module.SyncService
	h := hosttest.StartHost(t, client,
		fx.Decorate(func(s module.RuleService) module.RuleService { return countingRules{s, &reads} }),
		fx.Populate(&host, &sync),
	)
	ctx, users := t.Context(), []mxid.UserID{hosttest.Alice}
	for _, step := range []struct {
		name string
		do   func() error
		seen int32
	}{
		{"EnsureDefaults", func() error { return host.EnsureDefaults(ctx, hosttest.Alice) }, 1},
		{"AccountData", func() error { _, err := host.AccountData(ctx, hosttest.Alice); return err }, 1},
		{"Since", func() error { _, err := sync.Since(ctx, hosttest.Alice, 0); return err }, 1},
		{"GET /pushrules/", func() error { h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", ""); return nil }, 1},
		{"Rulesets", func() error { return host.Rulesets(ctx, users)[hosttest.Alice].Err }, 0},
		{"RefreshDefaults", func() error { return host.RefreshDefaults(ctx, hosttest.Alice) }, 0},
		{"ForgetUser", func() error { return host.ForgetUser(ctx, hosttest.Alice) }, 0},
	} {
		reads.Store(0)
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := reads.Load(); got != step.seen {
			t.Errorf("%s: the wrapper saw %d reads, want %d", step.name, got, step.seen)
		}
	}
}

type loggedOut struct{}

func (loggedOut) LoggedIn(context.Context, mxid.UserID, string) (bool, error) { return false, nil }

// A host whose Accounts need the module's services sets them later, since fx refuses a cycle.
func TestAccountsMayComeAfterTheServices(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	late := &struct{ module.Accounts }{}
	h := hosttest.StartHost(t, client,
		fx.Supply(fx.Annotate(late, fx.As(new(module.Accounts)))),
		fx.Invoke(func(*pushfx.Push, module.HostService) { late.Accounts = loggedOut{} }),
	)
	if a := h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", ""); a.Status != http.StatusUnauthorized {
		t.Errorf("got %d %s, want 401: every device is logged out", a.Status, a.Body)
	}
}

// Common mistakes of hosts work, or give an error of one line.
func TestConcreteTypesOfClientAndRegistryWork(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	registry := prometheus.NewRegistry()
	app := fx.New(fx.NopLogger, pushfx.Module, fx.Provide(zap.NewNop), fx.Supply(client, registry))
	if err := app.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer app.Stop(t.Context())
	if families, err := registry.Gather(); err != nil || len(families) == 0 {
		t.Errorf("got %d metrics, %v", len(families), err)
	}
}

func TestAMissingClientGivesAnErrorOfOneLine(t *testing.T) {
	t.Parallel()
	err := fx.New(fx.NopLogger, pushfx.Module, fx.Provide(zap.NewNop)).Err()
	const want = "pushfx: there is no Redis client, or it is nil: provide a redis.UniversalClient, *redis.Client or *redis.ClusterClient"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v\nwant %s", err, want)
	}
}
