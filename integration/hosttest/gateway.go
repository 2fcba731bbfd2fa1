package hosttest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Gateway is a push gateway of a test.
type Gateway struct {
	receiver.Recorder
	*receiver.Receiver
	URL string
}

// NewGateway starts a gateway.
func NewGateway(t testing.TB) *Gateway {
	t.Helper()
	g := &Gateway{}
	g.Receiver = receiver.New(g.Add)
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	g.URL = server.URL + receiver.Path
	return g
}

// Wait returns the notifications when enough have arrived.
func (g *Gateway) Wait(t testing.TB, enough func([]receiver.Notification) bool) []receiver.Notification {
	t.Helper()
	timeout := time.After(Never)
	for {
		all, more := g.All()
		if enough(all) {
			return all
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("%d notifications have arrived, and no more", len(all))
		}
	}
}

// AllowLoopback lets pushers have gateways on this machine.
func AllowLoopback(c pushfx.Config) pushfx.Config {
	c.PusherPolicy.AllowHTTP = true
	c.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	return c
}

// PusherAt returns a pusher of the gateway at a URL.
func PusherAt(url, pushkey string) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.HTTP, AppDisplayName: "App",
		DeviceDisplayName: "Phone", Lang: "en", Data: `{"url":"` + url + `"}`,
	}
}

// Message returns the nth message of a room.
func Message(n int) module.Event {
	return InRoom(fmt.Sprintf(
		`{"event_id":"$%d","room_id":"!room:x","type":"m.room.message","sender":"%s","content":{"msgtype":"m.text","body":"%d"}}`, n, Bob, n))
}

// InRoom returns an event of a room with three members.
func InRoom(event string) module.Event {
	return module.Event{JSON: event, Room: match.Room{MemberCount: 3}}
}

// SendEvent calls Decide and Notify, as a host does.
func SendEvent(ctx context.Context, notifier module.Notifier, e module.Event, users ...mxid.UserID) error {
	members := make([]match.Member, len(users))
	for i, user := range users {
		members[i] = match.Member{User: user}
	}
	decisions, err := notifier.Decide(ctx, e, members)
	if err != nil {
		return err
	}
	return notifier.Notify(ctx, e, decisions)
}

// ChanGateway takes all notifications, and sends the URLs to which they go.
type ChanGateway chan string

// Post implements [module.Gateway].
func (c ChanGateway) Post(_ context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	c <- r.URL
	return module.GatewayAnswer{Status: http.StatusOK}, nil
}
