package host

import (
	"net/http"
	"strings"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
)

// The change of one user ends each step, so that a call too many would come before.
func TestPusherListenersHearOfChangesByAllHosts(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	listener := make(hosttest.Recorder, 100)
	var push module.HostService
	here := hosttest.StartHost(t, server.Client(t), listener.OfPushers())
	there := hosttest.StartHost(t, server.Client(t), fx.Populate(&push))
	listener.Want(t, "at the start", hosttest.AllMissed)

	admin := server.Client(t)
	if watching := admin.PubSubNumSub(t.Context(), "pushers_changed").Val(); watching["pushers_changed"] != 1 {
		t.Errorf("the watching hosts are %v, want only the one with a listener", watching)
	}
	post := func(h *hosttest.Host, user, body string) {
		t.Helper()
		if a := h.Do(user, http.MethodPost, hosttest.V3+"/pushers/set", body); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	post(there, hosttest.Alice, hosttest.HTTPPusher("app", "key"))
	listener.Want(t, "a new pusher at another host", hosttest.Alice)
	for _, h := range []*hosttest.Host{there, here} {
		post(h, hosttest.Alice, hosttest.HTTPPusher("app", "key"))
	}
	post(here, hosttest.Alice, strings.Replace(hosttest.HTTPPusher("app", "key"), "Phone", "Tablet", 1))
	listener.Want(t, "a changed pusher at this host, after repeated ones", hosttest.Alice)
	post(there, hosttest.Bob, hosttest.HTTPPusher("app", "key"))
	listener.Want(t, "a lost pushkey", hosttest.Alice)
	listener.Want(t, "a taken pushkey", hosttest.Bob)
	if err := push.RemoveDevicePushers(t.Context(), hosttest.Bob, hosttest.Device); err != nil {
		t.Fatal(err)
	}
	// The set has removed alice's pusher. A slow listener hears of both changes of alice at once.
	if got := <-listener; got != hosttest.Alice {
		listener <- got
	}
	listener.Want(t, "a logout", hosttest.Bob)

	if err := admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	listener.Want(t, "after a disconnection", hosttest.AllMissed)
	post(there, hosttest.Alice, hosttest.HTTPPusher("app", "new"))
	listener.Want(t, "a change after it", hosttest.Alice)
	if err := push.ForgetUser(t.Context(), hosttest.Alice); err != nil {
		t.Fatal(err)
	}
	listener.Want(t, "a deactivation", hosttest.Alice)
}
