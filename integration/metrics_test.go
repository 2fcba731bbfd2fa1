package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// scraped holds metrics by name and labels, such as "pushfx_x_total{event=a,store=b}": a counter's or gauge's
// value, or a histogram's count.
type scraped map[string]float64

func startMeasured(t *testing.T, client redis.UniversalClient, options ...fx.Option) (*host, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	options = append(options, fx.Supply(fx.Annotate(registry, fx.As(new(prometheus.Registerer)))))
	return startHost(t, client, options...), registry
}

func scrape(t *testing.T, registry *prometheus.Registry) scraped {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := scraped{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			all[family.GetName()+labels(m)] = value(m)
		}
	}
	return all
}

func labels(m *dto.Metric) string {
	var parts []string
	for _, pair := range m.GetLabel() {
		parts = append(parts, pair.GetName()+"="+pair.GetValue())
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func value(m *dto.Metric) float64 {
	if h := m.GetHistogram(); h != nil {
		return float64(h.GetSampleCount())
	}
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func (s scraped) want(t *testing.T, wanted scraped) {
	t.Helper()
	for name, want := range wanted {
		if got, found := s[name]; got != want || !found {
			t.Errorf("%s is %v (found: %v), want %v", name, got, found, want)
		}
	}
}

func TestMetricsShowOperations(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	listener := recorder{make(chan string, 10)}
	h, registry := startMeasured(t, client, fx.Provide(pushfx.AsChangeListener(func() recorder { return listener })))
	listener.wantWatch(t)
	scrape(t, registry).want(t, scraped{
		"pushfx_rule_sets_total{event=created}":                                 0,
		"pushfx_rule_sets_total{event=imported}":                                0,
		"pushfx_store_write_events_total{event=unknown_outcome,store=pushkeys}": 0,
	})
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	eventually(t, "the listener receives the first change, before the second takes its place", func() bool {
		return scrape(t, registry)["pushfx_change_lag_seconds{}"] == 1
	})
	h.do(alice, http.MethodPut, v3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
	h.do(alice, http.MethodPut, v3+"/pushrules/global/room/!a:b", `{`)
	h.do(alice, http.MethodGet, r0+"/pushrules/global/room/nothing", "")
	h.do("", http.MethodGet, v3+"/pushers", "")
	eventually(t, "the listener receives a change", func() bool {
		return scrape(t, registry)["pushfx_change_lag_seconds{}"] == 2
	})
	scrape(t, registry).want(t, scraped{
		"pushfx_request_duration_seconds{method=GET,route=" + v3 + "/pushrules/,status=2xx}":                     1,
		"pushfx_request_duration_seconds{method=PUT,route=" + v3 + "/pushrules/global/:kind/:ruleId,status=2xx}": 1,
		"pushfx_request_duration_seconds{method=PUT,route=" + v3 + "/pushrules/global/:kind/:ruleId,status=4xx}": 1,
		"pushfx_request_duration_seconds{method=GET,route=" + r0 + "/pushrules/global/:kind/:ruleId,status=4xx}": 1,
		"pushfx_request_duration_seconds{method=GET,route=" + v3 + "/pushers,status=4xx}":                        1,
		"pushfx_store_operation_duration_seconds{operation=load,outcome=ok,store=push_rules}":                    2,
		"pushfx_store_operation_duration_seconds{operation=update,outcome=ok,store=push_rules}":                  2,
		"pushfx_rule_sets_total{event=created}":                                                                  1,
		"pushfx_rule_sets_total{event=repaired}":                                                                 0,
		"pushfx_changes_notified_total{}":                                                                        2,
		"pushfx_changes_dropped_total{}":                                                                         0,
		"pushfx_changes_waiting{}":                                                                               0,
		"pushfx_watching{}":                                                                                      1,
		"pushfx_evicting_masters{}":                                                                              0,
	})
}

// Versions of a host's own store are not times.
func TestAHostsOwnStoreIsMeasured(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	mine := newMemoryRules()
	listener := recorder{make(chan string, 10)}
	h, registry := startMeasured(t, client, fx.Provide(pushfx.AsChangeListener(func() recorder { return listener })),
		fx.Replace(fx.Annotate(mine, fx.As(new(module.RuleStore)))))
	listener.wantWatch(t)
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	h.do(alice, http.MethodPut, v3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
	eventually(t, "the listener is notified", func() bool { return scrape(t, registry)["pushfx_change_lag_seconds{}"] >= 1 })
	scrape(t, registry).want(t, scraped{
		"pushfx_store_operation_duration_seconds{operation=load,outcome=ok,store=push_rules}":   1,
		"pushfx_store_operation_duration_seconds{operation=update,outcome=ok,store=push_rules}": 2,
	})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if sum := family.GetMetric()[0].GetHistogram().GetSampleSum(); family.GetName() == "pushfx_change_lag_seconds" && sum > 10 {
			t.Errorf("2 changes took %v s", sum)
		}
	}
}

func TestNoLabelContainsClientInput(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	h, registry := startMeasured(t, client)
	series := func() []string { return slices.Sorted(maps.Keys(scrape(t, registry))) }
	send := func(n int) {
		for _, method := range []string{"GET", "PUT", "POST", "DELETE", "PATCH", "X" + strings.Repeat("Y", n%50)} {
			for _, path := range []string{"/pushrules/global/room/!%d:b", "/pushrules/x%d/room/a", "/pushrules/global/k%d/a/enabled", "/pushers/%d", "/pushers/set", "/pushrules%d"} {
				if strings.Contains(path, "%d") {
					path = fmt.Sprintf(path, n)
				}
				h.do(fmt.Sprintf("@user%d:b", n), method, v3+path, `{"enabled":true,"app_id":"app`+fmt.Sprint(n)+`"}`)
			}
		}
	}
	send(0)
	send(1)
	before := series()
	for n := range 20 {
		send(n + 2)
	}
	if after := series(); !slices.Equal(before, after) {
		t.Errorf("series grew from %d to %d: %q", len(before), len(after), after)
	}
}

func TestMetricsShowRacesAndUnreadableData(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	client := server.Client(t)
	h, registry := startMeasured(t, client)
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	for n := range 3 { // the second and the third lose a race
		if a := h.do(alice, http.MethodPut, v3+fmt.Sprintf("/pushrules/global/room/!%d:b", n), `{"actions":[]}`); a.status != 200 {
			t.Fatal(a)
		}
		key := eventKey(alice)
		text, _, found := strings.Cut(client.Get(t.Context(), key).Val(), `,"revision":`)
		if !found {
			t.Fatal("there is no revision")
		}
		if err := client.Set(t.Context(), key, text+"}", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Set(t.Context(), "account_data:{@broken:b}:m.push_rules", "{", 0).Err(); err != nil {
		t.Fatal(err)
	}
	h.do("@broken:b", http.MethodGet, v3+"/pushrules/", "")
	scrape(t, registry).want(t, scraped{
		"pushfx_store_write_events_total{event=stale_cache,store=push_rules}":                         2,
		"pushfx_store_operation_duration_seconds{operation=load,outcome=unreadable,store=push_rules}": 1,
	})
	server.Stop()
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	h.do(alice, http.MethodGet, v3+"/pushers", "")
	scrape(t, registry).want(t, scraped{
		"pushfx_store_operation_duration_seconds{operation=load,outcome=unavailable,store=push_rules}": 1,
		"pushfx_store_operation_duration_seconds{operation=load,outcome=unavailable,store=pushers}":    1,
		"pushfx_request_duration_seconds{method=GET,route=" + v3 + "/pushers,status=5xx}":              1,
	})
	eventually(t, "the watch has ended", func() bool { return scrape(t, registry)["pushfx_watching{}"] == 0 })
}

// Users read and change damaged data. The series exist from the start, because Prometheus sees no increase in a
// series that begins with 1.
func TestTheFirstUnreadableValueIncreasesTheMetric(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	h, registry := startMeasured(t, client)
	atFirst := scrape(t, registry)
	key, body := pusher.Key{AppID: "app", Pushkey: "key"}, pusherWith(`"app_id":"app"`, `"pushkey":"key"`)
	for name, err := range map[string]error{
		"rules":   client.Set(t.Context(), eventKey(alice), "{", 0).Err(),
		"pushers": client.HSet(t.Context(), stored.Keys{}.Pushers(alice), key.Field(), "{").Err(),
		"claims":  client.Set(t.Context(), stored.Keys{}.Pushkey(key.Digest()), "{", 0).Err(),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	h.do(alice, http.MethodPut, v3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
	h.do(alice, http.MethodGet, v3+"/pushers", "")
	h.do(alice, http.MethodPost, v3+"/pushers/set", body)
	h.do("@bob:example.org", http.MethodPost, v3+"/pushers/set", body)
	unreadable := 0
	for name, n := range scrape(t, registry) {
		if !strings.Contains(name, "outcome=unreadable") || n == 0 {
			continue
		}
		unreadable++
		if _, found := atFirst[name]; !found {
			t.Errorf("%s begins with %v", name, n)
		}
	}
	if unreadable < 3 {
		t.Errorf("only %d series count unreadable data", unreadable)
	}
}

// begun is a store that reports the start of each operation.
type begun struct {
	module.RuleStore
	operations chan struct{}
}

func (b begun) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	b.operations <- struct{}{}
	return b.RuleStore.Load(ctx, user)
}

func (b begun) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (module.Content, error) {
	b.operations <- struct{}{}
	return b.RuleStore.Update(ctx, user, edit)
}

// A hang-up causes no alerting status, no unavailable store and no line in the log.
func TestAClientsHangUpIsNoFailure(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ContextTimeoutEnabled: true, DialTimeout: time.Second / 2, ReadTimeout: time.Second,
	})
	t.Cleanup(func() { client.Close() })
	operations := make(chan struct{}, 100)
	h, registry := startMeasured(t, client, fx.Decorate(func(s module.RuleStore) module.RuleStore { return begun{s, operations} }))
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	h.takeLogged()
	server.Pause()
	for len(operations) > 0 {
		<-operations
	}
	requests := []struct{ method, route, path, body string }{
		{http.MethodGet, "/pushrules/", "/pushrules/", ""},
		{http.MethodPut, "/pushrules/global/:kind/:ruleId", "/pushrules/global/room/!a:b", `{"actions":[]}`},
	}
	for _, r := range requests {
		ctx, hangUp := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := h.try(ctx, alice, r.method, v3+r.path, r.body)
			ended <- err
		}()
		<-operations
		hangUp()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", r.method, err)
		}
	}
	request := func(method, route, status string) string {
		return fmt.Sprintf("pushfx_request_duration_seconds{method=%s,route=%s%s,status=%s}", method, v3, route, status)
	}
	operation := func(name, outcome string) string {
		return fmt.Sprintf("pushfx_store_operation_duration_seconds{operation=%s,outcome=%s,store=push_rules}", name, outcome)
	}
	eventually(t, "both requests have ended", func() bool {
		all := scrape(t, registry)
		ended := 0.0
		for _, r := range requests {
			ended += all[request(r.method, r.route, "gone")] + all[request(r.method, r.route, "5xx")]
		}
		return ended == float64(len(requests))
	})
	all := scrape(t, registry)
	all.want(t, scraped{
		request("GET", "/pushrules/", "gone"):                     1,
		request("PUT", "/pushrules/global/:kind/:ruleId", "gone"): 1,
		operation("load", "gone"):                                 1,
		operation("update", "gone"):                               1,
	})
	for name, n := range all {
		if n > 0 && (strings.Contains(name, "status=5xx") || strings.Contains(name, "outcome=unavailable")) {
			t.Errorf("%s is %v", name, n)
		}
	}
	if logged := h.takeLogged(); len(logged) > 0 {
		t.Errorf("logged %v", logged)
	}
}

func TestMetricsShowLostRepliesAndDurability(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Replicated(t, 1).Master()
	proxy := redistest.NewProxy(t, server)
	h, registry := startMeasured(t, proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }),
		fx.Decorate(func(c pushfx.Config) pushfx.Config {
			c.Redis.Durability = rediscommit.Durability{Replicas: 1, Timeout: c.Redis.Durability.Timeout}
			return c
		}))
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	lost := proxy.CutReply(1, "evalsha")
	if a := h.do(alice, http.MethodPut, v3+"/pushrules/global/room/!a:b", `{"actions":[]}`); a.status != 200 {
		t.Fatal(a)
	}
	<-lost.Struck()
	got := scrape(t, registry)
	got.want(t, scraped{"pushfx_store_write_events_total{event=unknown_outcome,store=push_rules}": 1})
	if n := got["pushfx_durability_wait_seconds{outcome=ok,store=push_rules}"]; n < 2 {
		t.Errorf("%v waits", n)
	}
}

func TestMetricNamesFollowConventions(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	h, registry := startMeasured(t, client)
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func TestMetricsAreRegisteredWhileTheHostRuns(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	for range 2 { // hosts, one after the other
		t.Run("", func(t *testing.T) {
			_, client := embedded(t)
			startHost(t, client, fx.Supply(fx.Annotate(registry, fx.As(new(prometheus.Registerer)))))
			if len(scrape(t, registry)) == 0 {
				t.Error("there are no metrics")
			}
		})
		if left := scrape(t, registry); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

// wantWatch waits until the listener has been told that the watch has begun. A change before that needs no call of its own.
func (r recorder) wantWatch(t *testing.T) {
	t.Helper()
	select {
	case got := <-r.received:
		if got != allMissed {
			t.Fatalf("the listener received %q first", got)
		}
	case <-time.After(never):
		t.Fatal("the watch has not begun")
	}
}

func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for start := time.Now(); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > never {
			t.Fatalf("not so after %v: %s", never, what)
		}
	}
}

// persist repeats do while storage is unavailable, as it may be on a busy machine.
func persist(do func() error) (err error) {
	for start := time.Now(); time.Since(start) < time.Minute; {
		if err = do(); fault.KindOf(err) != fault.Unavailable {
			break
		}
	}
	return err
}
