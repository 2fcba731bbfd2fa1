package faults

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// lostMaster is a cluster of which a master and its replica die. This master has the number of the delivery queue's
// shards. The hosts have delivery and unread counts.
type lostMaster struct {
	t         *testing.T
	cluster   *redistest.ClusterServers
	lost      *redistest.Server
	lostSlots [2]int // the first and the last
	host      *hosttest.Host
	n         int
}

func newLostMaster(t *testing.T) *lostMaster {
	t.Helper()
	cluster := redistest.Cluster(t, 3, 1, "--cluster-require-full-coverage", "no")
	n := redisclient.SlotOf(stored.Keys{}.DeliveryFormat()) * 3 / 16384
	l := &lostMaster{t: t, cluster: cluster, lost: cluster.Masters()[n], lostSlots: [2]int{n * 16384 / 3, (n+1)*16384/3 - 1}}
	l.host = l.startHost()
	return l
}

func (l *lostMaster) startHost(options ...fx.Option) *hosttest.Host {
	l.t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{ // as the page for host developers advises
		Addrs: l.cluster.Addrs(), ContextTimeoutEnabled: true, ClusterStateReloadInterval: time.Second,
		DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second, DialerRetries: 2,
	})
	l.t.Cleanup(func() { client.Close() })
	return hosttest.StartHost(l.t, client, pushfx.Delivery, pushfx.Unread,
		fx.Provide(func() module.NotifiedEvents { return hosttest.RoomEvents{} }), fx.Options(options...))
}

func (l *lostMaster) isLost(key string) bool {
	slot := redisclient.SlotOf(key)
	return l.lostSlots[0] <= slot && slot <= l.lostSlots[1]
}

// newUser returns a new user, of the lost master or of another one.
func (l *lostMaster) newUser(ofLost bool) string {
	for {
		if l.n++; l.isLost(hosttest.EventKey(fmt.Sprintf("@user%d:example.org", l.n))) == ofLost {
			return fmt.Sprintf("@user%d:example.org", l.n)
		}
	}
}

func (l *lostMaster) newPushkey(onLost bool) string {
	for {
		l.n++
		key := pusher.Key{AppID: "app", Pushkey: fmt.Sprintf("pushkey%d", l.n)}
		if l.isLost(stored.Keys{}.Pushkey(key.Digest())) == onLost {
			return key.Pushkey
		}
	}
}

// wantServed sends the requests of users of living masters for whom nothing is stored, and lets a user take the pushkey of
// another one, who may be of the lost master.
func (l *lostMaster) wantServed(h *hosttest.Host, former ...string) {
	l.t.Helper()
	for n := range 20 {
		if n < len(former) {
			user, start := l.newUser(false), time.Now()
			for _, request := range []string{"POST /pushers/set " + hosttest.HTTPPusher("app", former[n]), "GET /pushers"} {
				if a := h.Ask(l.t, user, request); a.Status != http.StatusOK || strings.HasPrefix(request, "GET") && !strings.Contains(a.Body, former[n]) {
					l.t.Errorf("%s takes a pushkey, %s after %v: got %s: %v", user, request, time.Since(start), a, l.lastFailure(h))
				}
			}
		}
		for _, request := range []string{
			"GET /pushers", "GET /notifications", "GET /pushrules/", "POST /pushers/set " + hosttest.HTTPPusher("app", l.newPushkey(false)), "GET /pushers",
			`POST /pushers/set {"kind":null,"app_id":"app","pushkey":"none"}`,
		} {
			start, user := time.Now(), l.newUser(false)
			if a := h.Ask(l.t, user, request); a.Status != http.StatusOK {
				l.t.Errorf("%s of %s after %v: got %s: %v", request, user, time.Since(start), a, l.lastFailure(h))
			}
		}
		if l.t.Failed() {
			return
		}
	}
}

func (l *lostMaster) lastFailure(h *hosttest.Host) any {
	failures := h.Logs.FilterMessage("request failed").All()
	if len(failures) == 0 {
		return nil
	}
	return failures[len(failures)-1].ContextMap()["error"]
}

func TestALostMasterAffectsItsOwnUsersOnly(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*redistest.Server){"killed": (*redistest.Server).Stop, "hanging": (*redistest.Server).Pause} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLostMaster(t)
			l.wantServed(l.host)
			var taken [2][]string // pushkeys of living masters
			for n := range 20 {
				pushkey := l.newPushkey(false)
				taken[n%2] = append(taken[n%2], pushkey)
				if a := l.host.Ask(t, l.newUser(n < 10), "POST /pushers/set "+hosttest.HTTPPusher("app", pushkey)); a.Status != http.StatusOK {
					t.Fatal(a)
				}
			}
			far := l.newUser(false)
			if a := l.host.Ask(t, far, "POST /pushers/set "+hosttest.HTTPPusher("app", l.newPushkey(true))); a.Status != http.StatusOK {
				t.Fatal(a)
			}
			replicas, err := l.cluster.ReplicasOf(t.Context(), l.lost)
			if err != nil || len(replicas) != 1 {
				t.Fatal(replicas, err)
			}
			for _, server := range append(replicas, l.lost) {
				lose(server)
			}
			l.wantServed(l.host, taken[0]...)
			var took []time.Duration
			for range 20 { // the entry of the pushkey is on the lost master
				began := time.Now()
				if a := l.host.Ask(t, far, "GET /pushers"); a.Status != http.StatusOK || !strings.Contains(a.Body, "pushkey") {
					t.Errorf("got %s", a)
				}
				took = append(took, time.Since(began))
			}
			if slices.Sort(took); took[17] > 500*time.Millisecond || took[19] > hosttest.Slack {
				t.Errorf("pushers with a pushkey there are read after %v", took)
			}
			later := l.startHost(fx.Decorate(func(c pushfx.Config) pushfx.Config {
				c.Redis.Durability.Replicas = 1
				return c
			}))
			l.wantServed(later, taken[1]...)
			for request, want := range map[string]int{
				"GET /pushers": http.StatusOK,
				"POST /pushers/set " + hosttest.HTTPPusher("app", l.newPushkey(true)): http.StatusServiceUnavailable,
			} {
				if a := l.host.Ask(t, l.newUser(false), request); a.Status != want {
					t.Errorf("%s: got %s", request, a)
				}
			}
			if a := later.Ask(t, l.newUser(true), "GET /pushers"); a.Status != http.StatusServiceUnavailable {
				t.Errorf("a user of the lost master: got %s", a)
			}
		})
	}
}
