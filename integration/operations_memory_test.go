package integration

import (
	"net/http"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

func TestFullMemoryBehavesAsThePageSays(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	var push module.HostService
	var unread module.UnreadService
	h := startHost(t, server.Client(t), pushfx.Delivery, pushfx.Unread, fx.Populate(&push, &unread))
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	for _, user := range []string{alice, bob} {
		h.do(user, http.MethodPost, v3+"/pushers/set", httpPusher("app", "key of "+user))
		h.do(user, http.MethodPost, v3+"/pushers/set", httpPusher("app", "second key of "+user))
	}
	if err := unread.Read(t.Context(), alice, "!a:example.org", module.AllThreads, 1); err != nil {
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
		{http.MethodPost, "/pushers/set", httpPusher("app", "other key"), http.StatusServiceUnavailable},
		{http.MethodPost, "/pushers/set", `{"kind":null,"app_id":"app","pushkey":"key of ` + alice + `"}`, http.StatusOK},
		{http.MethodGet, "/pushers", "", http.StatusOK},
	} {
		if a := h.do(alice, r.method, v3+r.path, r.body); a.status != r.status {
			t.Errorf("%s %s: got %d %s, want %d", r.method, r.path, a.status, a.body, r.status)
		}
	}
	if err := push.RemoveDevicePushers(t.Context(), bob, device); err != nil {
		t.Errorf("logout: %v", err)
	}
	if err := push.ForgetUser(t.Context(), alice); err != nil {
		t.Errorf("deactivation: %v", err)
	}
	if a := h.do("@new:example.org", http.MethodGet, v3+"/pushrules/", ""); a.status != http.StatusServiceUnavailable {
		t.Errorf("the first read of a new user: got %d %s", a.status, a.body)
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
