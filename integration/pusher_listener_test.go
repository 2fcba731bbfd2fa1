package integration

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// deviceList is a host's listener of pushers.
type deviceList chan string

func (d deviceList) PushersChanged(_ context.Context, user mxid.UserID) { d <- string(user) }
func (d deviceList) PushersMissed(context.Context)                      { d <- "missed" }

func (d deviceList) want(t *testing.T, when, want string) {
	t.Helper()
	select {
	case got := <-d:
		if got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	case <-time.After(never):
		t.Fatalf("%s: not notified", when)
	}
}

func (d deviceList) option() fx.Option {
	return fx.Provide(pushfx.AsPusherListener(func() deviceList { return d }))
}

// The change of one user ends each step, so that a call too many would come before.
func TestPusherListenersHearOfChangesByAllHosts(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	listener := make(deviceList, 100)
	var push module.HostService
	here := startHost(t, server.Client(t), listener.option())
	there := startHost(t, server.Client(t), fx.Populate(&push))
	listener.want(t, "at the start", "missed")

	admin := server.Client(t)
	if watching := admin.PubSubNumSub(t.Context(), "pushers_changed").Val(); watching["pushers_changed"] != 1 {
		t.Errorf("the watching hosts are %v, want only the one with a listener", watching)
	}
	post := func(h *host, user, body string) {
		t.Helper()
		if a := h.do(user, http.MethodPost, v3+"/pushers/set", body); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	post(there, alice, httpPusher("app", "key"))
	listener.want(t, "a new pusher at another host", alice)
	for _, h := range []*host{there, here} {
		post(h, alice, httpPusher("app", "key"))
	}
	post(here, alice, strings.Replace(httpPusher("app", "key"), "Phone", "Tablet", 1))
	listener.want(t, "a changed pusher at this host, after repeated ones", alice)
	post(there, bob, httpPusher("app", "key"))
	listener.want(t, "a lost pushkey", alice)
	listener.want(t, "a taken pushkey", bob)
	if err := push.RemoveDevicePushers(t.Context(), bob, device); err != nil {
		t.Fatal(err)
	}
	// The set has removed alice's pusher. A slow listener hears of both changes of alice at once.
	if got := <-listener; got != alice {
		listener <- got
	}
	listener.want(t, "a logout", bob)

	if err := admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	listener.want(t, "after a disconnection", "missed")
	post(there, alice, httpPusher("app", "new"))
	listener.want(t, "a change after it", alice)
	if err := push.ForgetUser(t.Context(), alice); err != nil {
		t.Fatal(err)
	}
	listener.want(t, "a deactivation", alice)
}
