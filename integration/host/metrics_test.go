package host

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
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

func TestMetricsShowOperations(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	listener := make(hosttest.Recorder, 10)
	h, registry := hosttest.StartMeasured(t, client, fx.Provide(pushfx.AsChangeListener(func() hosttest.Recorder { return listener })))
	listener.Want(t, "at the start", hosttest.AllMissed)
	hosttest.Scrape(t, registry).Want(t, hosttest.Scraped{
		"pushfx_rule_sets_total{event=created}":                                 0,
		"pushfx_rule_sets_total{event=imported}":                                0,
		"pushfx_store_write_events_total{event=unknown_outcome,store=pushkeys}": 0,
	})
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	hosttest.Eventually(t, "the listener receives the first change, before the second takes its place", func() bool {
		return hosttest.Scrape(t, registry)["pushfx_change_lag_seconds{}"] == 1
	})
	h.Do(hosttest.Alice, http.MethodPut, hosttest.V3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
	h.Do(hosttest.Alice, http.MethodPut, hosttest.V3+"/pushrules/global/room/!a:b", `{`)
	h.Do(hosttest.Alice, http.MethodGet, hosttest.R0+"/pushrules/global/room/nothing", "")
	h.Do("", http.MethodGet, hosttest.V3+"/pushers", "")
	hosttest.Eventually(t, "the listener receives a change", func() bool {
		return hosttest.Scrape(t, registry)["pushfx_change_lag_seconds{}"] == 2
	})
	hosttest.Scrape(t, registry).Want(t, hosttest.Scraped{
		"pushfx_request_duration_seconds{method=GET,route=" + hosttest.V3 + "/pushrules/,status=2xx}":                     1,
		"pushfx_request_duration_seconds{method=PUT,route=" + hosttest.V3 + "/pushrules/global/:kind/:ruleId,status=2xx}": 1,
		"pushfx_request_duration_seconds{method=PUT,route=" + hosttest.V3 + "/pushrules/global/:kind/:ruleId,status=4xx}": 1,
		"pushfx_request_duration_seconds{method=GET,route=" + hosttest.R0 + "/pushrules/global/:kind/:ruleId,status=4xx}": 1,
		"pushfx_request_duration_seconds{method=GET,route=" + hosttest.V3 + "/pushers,status=4xx}":                        1,
		"pushfx_store_operation_duration_seconds{operation=load,outcome=ok,store=push_rules}":                             2,
		"pushfx_store_operation_duration_seconds{operation=update,outcome=ok,store=push_rules}":                           2,
		"pushfx_rule_sets_total{event=created}":  1,
		"pushfx_rule_sets_total{event=repaired}": 0,
		"pushfx_changes_notified_total{}":        2,
		"pushfx_changes_dropped_total{}":         0,
		"pushfx_changes_waiting{}":               0,
		"pushfx_watching{}":                      1,
		"pushfx_evicting_masters{}":              0,
	})
}

// Versions of a host's own store are not times.
func TestAHostsOwnStoreIsMeasured(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	mine := newMemoryRules()
	listener := make(hosttest.Recorder, 10)
	h, registry := hosttest.StartMeasured(t, client, fx.Provide(pushfx.AsChangeListener(func() hosttest.Recorder { return listener })),
		fx.Replace(fx.Annotate(mine, fx.As(new(module.RuleStore)))))
	listener.Want(t, "at the start", hosttest.AllMissed)
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	h.Do(hosttest.Alice, http.MethodPut, hosttest.V3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
	hosttest.Eventually(t, "the listener is notified", func() bool { return hosttest.Scrape(t, registry)["pushfx_change_lag_seconds{}"] >= 1 })
	hosttest.Scrape(t, registry).Want(t, hosttest.Scraped{
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
	_, client := hosttest.Embedded(t)
	h, registry := hosttest.StartMeasured(t, client)
	series := func() []string { return slices.Sorted(maps.Keys(hosttest.Scrape(t, registry))) }
	send := func(n int) {
		for _, method := range []string{"GET", "PUT", "POST", "DELETE", "PATCH", "X" + strings.Repeat("Y", n%50)} {
			for _, path := range []string{"/pushrules/global/room/!%d:b", "/pushrules/x%d/room/a", "/pushrules/global/k%d/a/enabled", "/pushers/%d", "/pushers/set", "/pushrules%d"} {
				if strings.Contains(path, "%d") {
					path = fmt.Sprintf(path, n)
				}
				h.Do(fmt.Sprintf("@user%d:b", n), method, hosttest.V3+path, `{"enabled":true,"app_id":"app`+fmt.Sprint(n)+`"}`)
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
	h, registry := hosttest.StartMeasured(t, client)
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	for n := range 3 { // the second and the third lose a race
		if a := h.Do(hosttest.Alice, http.MethodPut, hosttest.V3+fmt.Sprintf("/pushrules/global/room/!%d:b", n), `{"actions":[]}`); a.Status != 200 {
			t.Fatal(a)
		}
		key := hosttest.EventKey(hosttest.Alice)
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
	h.Do("@broken:b", http.MethodGet, hosttest.V3+"/pushrules/", "")
	hosttest.Scrape(t, registry).Want(t, hosttest.Scraped{
		"pushfx_store_write_events_total{event=stale_cache,store=push_rules}":                         2,
		"pushfx_store_operation_duration_seconds{operation=load,outcome=unreadable,store=push_rules}": 1,
	})
	server.Stop()
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers", "")
	hosttest.Scrape(t, registry).Want(t, hosttest.Scraped{
		"pushfx_store_operation_duration_seconds{operation=load,outcome=unavailable,store=push_rules}": 1,
		"pushfx_store_operation_duration_seconds{operation=load,outcome=unavailable,store=pushers}":    1,
		"pushfx_request_duration_seconds{method=GET,route=" + hosttest.V3 + "/pushers,status=5xx}":     1,
	})
	hosttest.Eventually(t, "the watch has ended", func() bool { return hosttest.Scrape(t, registry)["pushfx_watching{}"] == 0 })
}

// Users read and change damaged data. The series exist from the start, because Prometheus sees no increase in a
// series that begins with 1.
func TestTheFirstUnreadableValueIncreasesTheMetric(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	h, registry := hosttest.StartMeasured(t, client)
	atFirst := hosttest.Scrape(t, registry)
	key, body := pusher.Key{AppID: "app", Pushkey: "key"}, hosttest.PusherWith(`"app_id":"app"`, `"pushkey":"key"`)
	for name, err := range map[string]error{
		"rules":   client.Set(t.Context(), hosttest.EventKey(hosttest.Alice), "{", 0).Err(),
		"pushers": client.HSet(t.Context(), stored.Keys{}.Pushers(hosttest.Alice), key.Field(), "{").Err(),
		"claims":  client.Set(t.Context(), stored.Keys{}.Pushkey(key.Digest()), "{", 0).Err(),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	h.Do(hosttest.Alice, http.MethodPut, hosttest.V3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers", "")
	h.Do(hosttest.Alice, http.MethodPost, hosttest.V3+"/pushers/set", body)
	h.Do("@bob:example.org", http.MethodPost, hosttest.V3+"/pushers/set", body)
	unreadable := 0
	for name, n := range hosttest.Scrape(t, registry) {
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
	h, registry := hosttest.StartMeasured(t, client, fx.Decorate(func(s module.RuleStore) module.RuleStore { return begun{s, operations} }))
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	h.TakeLogged()
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
			_, err := h.Try(ctx, hosttest.Alice, r.method, hosttest.V3+r.path, r.body)
			ended <- err
		}()
		<-operations
		hangUp()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", r.method, err)
		}
	}
	request := func(method, route, status string) string {
		return fmt.Sprintf("pushfx_request_duration_seconds{method=%s,route=%s%s,status=%s}", method, hosttest.V3, route, status)
	}
	operation := func(name, outcome string) string {
		return fmt.Sprintf("pushfx_store_operation_duration_seconds{operation=%s,outcome=%s,store=push_rules}", name, outcome)
	}
	hosttest.Eventually(t, "both requests have ended", func() bool {
		all := hosttest.Scrape(t, registry)
		ended := 0.0
		for _, r := range requests {
			ended += all[request(r.method, r.route, "gone")] + all[request(r.method, r.route, "5xx")]
		}
		return ended == float64(len(requests))
	})
	all := hosttest.Scrape(t, registry)
	all.Want(t, hosttest.Scraped{
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
	if logged := h.TakeLogged(); len(logged) > 0 {
		t.Errorf("logged %v", logged)
	}
}

func TestMetricsShowLostRepliesAndDurability(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Replicated(t, 1).Master()
	proxy := redistest.NewProxy(t, server)
	h, registry := hosttest.StartMeasured(t, proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }),
		fx.Decorate(func(c pushfx.Config) pushfx.Config {
			c.Redis.Durability = rediscommit.Durability{Replicas: 1, Timeout: c.Redis.Durability.Timeout}
			return c
		}))
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	lost := proxy.CutReply(1, "evalsha")
	if a := h.Do(hosttest.Alice, http.MethodPut, hosttest.V3+"/pushrules/global/room/!a:b", `{"actions":[]}`); a.Status != 200 {
		t.Fatal(a)
	}
	<-lost.Struck()
	got := hosttest.Scrape(t, registry)
	got.Want(t, hosttest.Scraped{"pushfx_store_write_events_total{event=unknown_outcome,store=push_rules}": 1})
	if n := got["pushfx_durability_wait_seconds{outcome=ok,store=push_rules}"]; n < 2 {
		t.Errorf("%v waits", n)
	}
}

func TestMetricNamesFollowConventions(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	h, registry := hosttest.StartMeasured(t, client)
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
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
			_, client := hosttest.Embedded(t)
			hosttest.StartHost(t, client, fx.Supply(fx.Annotate(registry, fx.As(new(prometheus.Registerer)))))
			if len(hosttest.Scrape(t, registry)) == 0 {
				t.Error("there are no metrics")
			}
		})
		if left := hosttest.Scrape(t, registry); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}
