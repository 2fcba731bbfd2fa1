package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/service"
)

func netBytes(t *testing.T, client redis.UniversalClient) (received, sent int64) {
	t.Helper()
	info, err := client.Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "total_net_input_bytes":
			received = n
		case "total_net_output_bytes":
			sent = n
		}
	}
	return received, sent
}

func moved(t *testing.T, client redis.UniversalClient, do func()) (received, sent int64) {
	t.Helper()
	receivedBefore, sentBefore := netBytes(t, client)
	do()
	received, sent = netBytes(t, client)
	return received - receivedBefore, sent - sentBefore
}

func shareWithLargePushers(t *testing.T, h pushkeyHost, users []mxid.UserID, p pusher.Pusher) {
	t.Helper()
	for _, user := range users {
		setLarge(t, h, user)
		if err := h.service.Set(t.Context(), user, p, pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
	}
}

func setLarge(t *testing.T, h pushkeyHost, user mxid.UserID) {
	t.Helper()
	const large = 14
	data := `{"x":"` + strings.Repeat("x", 16<<10-100) + `"}`
	if err := h.store.Update(t.Context(), user, func(list *pusher.List) error {
		for n := range large {
			p := sharedPusher(fmt.Sprintf("%s's own %d", user, n))
			p.Data = data
			list.Set(p)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A request about a shared pushkey transfers only the pushers with that pushkey, even on a host with an empty
// cache.
func TestARequestAboutASharedPushkeyTransfersLittle(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const (
		little     = 100 << 10
		ownPushers = 300 << 10 // more than the pushers of a user
	)
	server := redistest.Single(t)
	users, p := manyUsers(100), sharedPusher("shared")
	p.Data = `{"n":"a phone","url":"https://push.example.org/_matrix/push/v1/notify"}`
	const warm, cold mxid.UserID = "@warm:example.org", "@cold:example.org"
	cached := newPushkeyHost(t, server.Client(t))
	shareWithLargePushers(t, cached, users[:97], p)
	setLarge(t, cached, warm)
	setLarge(t, cached, cold)
	admin := server.Client(t)
	changed := p
	changed.Lang, changed.Data = "de", sharedPusher("shared").Data
	for _, request := range []struct {
		name string
		most int64
		do   func(h pushkeyHost) error
	}{
		{"appended again by the first", little, func(h pushkeyHost) error { return h.service.Set(t.Context(), users[0], p, pusher.KeepOthers) }},
		{"appended with another language", little, func(h pushkeyHost) error { return h.service.Set(t.Context(), users[1], changed, pusher.KeepOthers) }},
		{"appended again by the last", little, func(h pushkeyHost) error { return h.service.Set(t.Context(), users[1], changed, pusher.KeepOthers) }},
		{"deleted", little, func(h pushkeyHost) error { return h.service.Delete(t.Context(), users[2], p.Key) }},
		{"appended by a user with cached pushers", little, func(pushkeyHost) error { return cached.service.Set(t.Context(), warm, p, pusher.KeepOthers) }},
		{"appended by a user without cached pushers", ownPushers, func(h pushkeyHost) error { return h.service.Set(t.Context(), cold, p, pusher.KeepOthers) }},
		{"appended by one without pushers", little, func(h pushkeyHost) error { return h.service.Set(t.Context(), "@new:example.org", p, pusher.KeepOthers) }},
		{"reconciled in the background, after a search for the key", ownPushers, func(h pushkeyHost) error {
			if err := h.index.MarkPending(t.Context(), module.PendingPushkey{Key: p.Digest(), Claim: 1}); err != nil {
				return err
			}
			return service.New(module.Stores{Pushers: h.store, Pushkeys: h.index}, nil, service.Options{}).Host(nil).ReconcilePushkeys(t.Context())
		}},
		{"taken of all others", ownPushers + 2*little, func(h pushkeyHost) error { return h.service.Set(t.Context(), users[3], p, pusher.RemoveOthers) }},
	} {
		client := server.Client(t)
		host := newPushkeyHost(t, client)
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		received, sent := moved(t, admin, func() {
			if err := request.do(host); err != nil {
				t.Errorf("%s: %v", request.name, err)
			}
		})
		t.Logf("%s: Redis received %d bytes and sent %d", request.name, received, sent)
		if received+sent > request.most {
			t.Errorf("%s: Redis received %d bytes and sent %d, want at most %d in all", request.name, received, sent, request.most)
		}
	}
	if owners := newPushkeyHost(t, admin).owners(t, p.Key, users); len(owners) != 1 || owners[0] != users[3] {
		t.Errorf("owned by %v in the end", owners)
	}
}

// A client makes a pusher larger. The check of the user's limit reads no pushers, even if the host has not cached
// the user or another host has changed the pushers.
func TestAGrowingPusherTransfersLittle(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const (
		sharers = 20
		rounds  = 3
		most    = 100 << 10 // on average
	)
	server := redistest.Single(t)
	users, p := manyUsers(sharers), sharedPusher("shared")
	shareWithLargePushers(t, newPushkeyHost(t, server.Client(t)), users, p)
	admin, hosts := server.Client(t), [2]pushkeyHost{}
	for i := range hosts {
		hosts[i] = newPushkeyHost(t, server.Client(t))
	}
	received, sent := moved(t, admin, func() {
		for round := range rounds {
			for n, user := range users {
				p.Lang += "x"
				others := []pusher.Others{pusher.KeepOthers, pusher.RemoveOthers}[n/(sharers-1)*(round/(rounds-1))]
				if err := hosts[(n+round)%2].service.Set(t.Context(), user, p, others); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	average := (received + sent) / (sharers * rounds)
	t.Logf("on average %d bytes", average)
	if average > most {
		t.Errorf("on average %d bytes, want at most %d", average, most)
	}
	if owners := hosts[0].owners(t, p.Key, users); len(owners) != 1 {
		t.Errorf("owned by %v in the end", owners)
	}
}
