package integration

import (
	"net/http"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestFullMemoryBehavesAsThePageSays(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	var push module.HostService
	h := startHost(t, server.Client(t), fx.Populate(&push))
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	h.do(alice, http.MethodPost, v3+"/pushers/set", httpPusher("app", "key"))
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
		{http.MethodPost, "/pushers/set", `{"kind":null,"app_id":"app","pushkey":"key"}`, http.StatusOK},
		{http.MethodGet, "/pushers", "", http.StatusOK},
	} {
		if a := h.do(alice, r.method, v3+r.path, r.body); a.status != r.status {
			t.Errorf("%s %s: got %d %s, want %d", r.method, r.path, a.status, a.body, r.status)
		}
	}
	if err := push.RemoveDevicePushers(t.Context(), alice, device); err != nil {
		t.Errorf("logout: %v", err)
	}
	if err := push.ForgetUser(t.Context(), alice); err != nil {
		t.Errorf("deactivation: %v", err)
	}
}
