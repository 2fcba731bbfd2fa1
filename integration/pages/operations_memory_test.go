package pages

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/fx"
	"golang.org/x/sync/errgroup"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

func TestFullMemoryBehavesAsThePageSays(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	var push module.HostService
	var unread module.UnreadService
	h := hosttest.StartHost(t, server.Client(t), pushfx.Delivery, pushfx.Unread, fx.Populate(&push, &unread))
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	for _, user := range []string{hosttest.Alice, hosttest.Bob} {
		h.Do(user, http.MethodPost, hosttest.V3+"/pushers/set", hosttest.HTTPPusher("app", "key of "+user))
		h.Do(user, http.MethodPost, hosttest.V3+"/pushers/set", hosttest.HTTPPusher("app", "second key of "+user))
	}
	if err := unread.Read(t.Context(), hosttest.Alice, "!a:example.org", module.AllThreads, 1); err != nil {
		t.Fatal(err)
	}
	if err := server.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	const rule = "/pushrules/global/room/!a:example.org"
	for _, r := range []struct {
		method, path, body string
		status             int
	}{
		{http.MethodGet, "/pushrules/", "", http.StatusOK},
		{http.MethodPut, rule, `{"actions":[]}`, http.StatusServiceUnavailable},
		{http.MethodPost, "/pushers/set", hosttest.HTTPPusher("app", "other key"), http.StatusServiceUnavailable},
		{http.MethodPost, "/pushers/set", `{"kind":null,"app_id":"app","pushkey":"key of ` + hosttest.Alice + `"}`, http.StatusOK},
		{http.MethodGet, "/pushers", "", http.StatusOK},
	} {
		if a := h.Do(hosttest.Alice, r.method, hosttest.V3+r.path, r.body); a.Status != r.status {
			t.Errorf("%s %s: got %d %s, want %d", r.method, r.path, a.Status, a.Body, r.status)
		}
	}
	if err := push.RemoveDevicePushers(t.Context(), hosttest.Bob, hosttest.Device); err != nil {
		t.Errorf("logout: %v", err)
	}
	if err := push.ForgetUser(t.Context(), hosttest.Alice); err != nil {
		t.Errorf("deactivation: %v", err)
	}
	if a := h.Do("@new:example.org", http.MethodGet, hosttest.V3+"/pushrules/", ""); a.Status != http.StatusServiceUnavailable {
		t.Errorf("the first read of a new user: got %d %s", a.Status, a.Body)
	}
	keys, err := server.Client(t).Keys(t.Context(), "*").Result()
	for _, key := range keys {
		if key == (stored.Keys{}).DeliveryFormat() {
			continue
		}
		if left, failed := server.Client(t).TTL(t.Context(), key).Result(); failed != nil || left < 0 {
			t.Errorf("%s stays, %v", key, failed)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// The test measures the memory of the process, so it is not parallel and no test runs beside it.
func TestSmallSettingsBoundTheMemoryOfAHost(t *testing.T) {
	redistest.Require(t)
	const users = 1000
	small := func(c pushfx.Config) pushfx.Config {
		c.Redis.CacheBytes, c.Changes.MaxBytes, c.Changes.MaxCachedRules = 1<<20, 1<<20, 1<<20
		return c
	}
	bound := memoryBound(small(pushfx.DefaultConfig())) + 8<<20 // for connections and buffers
	server := redistest.Single(t)
	var importer module.HostService
	hosttest.StartHost(t, server.Client(t), fx.Decorate(small), fx.Populate(&importer))
	user := func(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%d:example.org", n)) }
	ofAll(t, users, func(n int) error {
		_, err := importer.Import(t.Context(), user(n), largeImport(n), module.StoreImport)
		return err
	})
	events := 0 // delivery sends an event once
	for name, config := range map[string]func(pushfx.Config) pushfx.Config{
		"small":   small,
		"default": func(c pushfx.Config) pushfx.Config { return c },
	} {
		t.Run(name, func(t *testing.T) {
			var notifier module.Notifier
			var syncs module.SyncService
			posted := make(hosttest.ChanGateway, users)
			h := hosttest.StartHost(t, server.Client(t), pushfx.Delivery, fx.Populate(&notifier, &syncs),
				fx.Decorate(config, func(module.Gateway) module.Gateway { return posted }))
			use := func(n int) error {
				h.Do(string(user(n)), http.MethodGet, hosttest.V3+"/pushrules/", "")
				h.Do(string(user(n)), http.MethodGet, hosttest.V3+"/pushers", "")
				if _, err := syncs.Since(t.Context(), user(n), 0); err != nil {
					return err
				}
				return hosttest.SendEvent(t.Context(), notifier, hosttest.Message(events+n), user(n))
			}
			before := heap()
			ofAll(t, users, use)
			hosttest.Eventually(t, "all notifications are sent", func() bool { return len(posted) == users })
			used := heap() - before
			events += users
			t.Logf("%s settings: %d KiB for %d users, the bound is %d KiB", name, used>>10, users, bound>>10)
			if name == "small" && used > bound {
				t.Errorf("a host has %d KiB, want at most %d", used>>10, bound>>10)
			}
			if name == "default" && used < 2*bound {
				t.Errorf("without small settings a host has %d KiB, so the test shows nothing", used>>10)
			}
		})
	}
}

func TestThePageSaysHowMuchMemoryAHostNeeds(t *testing.T) {
	t.Parallel()
	page := pages(t)["../integration/operations/README.md"]
	less := pushfx.DefaultConfig()
	less.Redis.CacheBytes, less.Changes.MaxBytes, less.Changes.MaxCachedRules = 8<<20, 16<<20, 4<<20 // as the page says
	for _, config := range []pushfx.Config{pushfx.DefaultConfig(), less} {
		if text := fmt.Sprint(memoryBound(config)>>20, " MiB"); !strings.Contains(page, text) {
			t.Errorf("the page does not say %s", text)
		}
	}
}

// memoryBound returns the bytes of all caches together, as the page says.
func memoryBound(c pushfx.Config) int {
	return 3*c.Redis.CacheBytes + c.Changes.MaxBytes + 7*c.Changes.MaxCachedRules
}

// ofAll calls do for the numbers below n, a few at a time.
func ofAll(t *testing.T, n int, do func(int) error) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// largeImport returns rules of about 8 KB, which no other user has, and a pusher of 4 KB.
func largeImport(n int) module.Import {
	var rules []string
	for i := range 60 {
		rules = append(rules, fmt.Sprintf(`{"rule_id":"!room%d-%d:a-server-with-a-name.example.org","default":false,"enabled":true,"actions":[]}`, n, i))
	}
	p := hosttest.PusherAt("https://push.example.org/_matrix/push/v1/notify", fmt.Sprint("key of ", n))
	p.Data = strings.TrimSuffix(p.Data, "}") + `,"filler":"` + strings.Repeat("x", 4<<10) + `"}`
	return module.Import{Rules: `{"global":{"room":[` + strings.Join(rules, ",") + `]}}`, Pushers: []pusher.Pusher{p}}
}

// heap returns the bytes in use after a collection.
func heap() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // also what finalizers and pools held
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
