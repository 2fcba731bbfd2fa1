package faults

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// With more than module.RepeatsKept events for a user, an event whose reply was lost may come twice.
var awayEvents = flag.Int("away", 60, "how many events three demo hosts get while a master is away")

// demoMasters is three demo hosts on a cluster, of which a master is away for a while: the one with the number of the
// delivery queue's shards. Each event has a member there, and one on another master.
type demoMasters struct {
	t       *testing.T
	redis   *redistest.ClusterServers
	away    int // its number
	arrived receiver.Recorder
	gateway string
	n       int

	mu   sync.Mutex
	sent map[string]time.Time // by event
}

// A master ends or hangs while three hosts that have started at different times send events. Its users get each event
// once when it is back, and all others get each event once, without a delay.
func TestAMasterThatIsAwayDoublesAndDelaysNothingOfTheDemo(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	for name, test := range map[string]struct{ begin, end func(*redistest.Server) }{
		"ends":  {(*redistest.Server).Stop, (*redistest.Server).Start},
		"hangs": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &demoMasters{
				t: t, away: redisclient.SlotOf(stored.Keys{}.DeliveryFormat()) * 3 / 16384, sent: map[string]time.Time{},
				redis: redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no", "--appendonly", "yes", "--appendfsync", "always"),
			}
			gateway := httptest.NewServer(receiver.New(a.arrived.Add))
			t.Cleanup(gateway.Close)
			a.gateway = gateway.URL + receiver.Path
			hosts := []*hosttest.Demo{a.startHost()}
			there, elsewhere := a.newUser(hosts[0], true), a.newUser(hosts[0], false)
			a.sendMany(hosts, *awayEvents/3, there, elsewhere)
			a.wantDelays(elsewhere)
			a.wait("the events have arrived", func() bool { return len(a.arrivals(there)) == len(a.sent) })
			early := maps.Clone(a.sent) // a host may not have noted the gateway's answer
			master := a.redis.Masters()[a.away]
			test.begin(master)
			for range 3 {
				a.sendMany(hosts, *awayEvents/3, there, elsewhere)
				hosts = append(hosts, a.startHost())
			}
			a.wantDelays(elsewhere)
			test.end(master)
			db, began := hosttest.OpenData(t), time.Now()
			a.wait("the outbox is empty", func() bool {
				rows, err := data.All(t.Context(), db, data.Value[int], `SELECT id FROM push_outbox`)
				return err == nil && len(rows) == 0
			})
			t.Logf("the outbox was empty after %v", time.Since(began))
			a.sendMany(hosts, 1, there, elsewhere)
			a.wantOnce(early, there, elsewhere)
		})
	}
}

func (a *demoMasters) startHost() *hosttest.Demo {
	return hosttest.StartDemo(a.t, "-redis-mode", "cluster", "-redis", strings.Join(a.redis.Addrs(), ","))
}

// newUser returns a new user with a pusher, of the master that will be away or of another one.
func (a *demoMasters) newUser(d *hosttest.Demo, isThere bool) (user string) {
	for ; user == "" || (redisclient.SlotOf("{"+user+"}")*3/16384 == a.away) != isThere; a.n++ {
		user = fmt.Sprintf("@user%d:localhost", a.n)
	}
	d.MustSend("demo-"+strings.TrimSuffix(user[1:], ":localhost"), http.MethodPost, "/pushers/set", fmt.Sprintf(`{"kind":"http","app_id":"app","pushkey":%q,
		"app_display_name":"","device_display_name":"","lang":"en","data":{"url":%q}}`, user, a.gateway))
	return user
}

// sendMany sends events in some rooms to all hosts in turn, 40 in a second.
func (a *demoMasters) sendMany(hosts []*hosttest.Demo, events int, members ...string) {
	const senders = 4
	list, err := json.Marshal(members)
	if err != nil {
		a.t.Fatal(err)
	}
	var all sync.WaitGroup
	for sender := range senders {
		all.Go(func() {
			pace := time.NewTicker(100 * time.Millisecond)
			defer pace.Stop()
			for n := sender; n < events; n += senders {
				<-pace.C
				a.mu.Lock()
				a.n++
				event := fmt.Sprint("$", a.n)
				a.sent[event] = time.Now()
				a.mu.Unlock()
				body := fmt.Sprintf(`{"event_id":%q,"room_id":"!room%d:localhost","members":%s,"type":"m.room.message","content":{}}`, event, n%10, list)
				if err := hosts[n%len(hosts)].SendEvent(body); err != nil {
					a.t.Errorf("%s: %v", event, err)
				}
			}
		})
	}
	all.Wait()
}

// arrivals returns when the events of a user arrived.
func (a *demoMasters) arrivals(user string) map[string][]time.Time {
	times := map[string][]time.Time{}
	all, _ := a.arrived.All()
	for _, n := range all {
		if n.EventID != "" && n.Devices[0].Pushkey == user {
			times[n.EventID] = append(times[n.EventID], n.Ended)
		}
	}
	return times
}

// wantDelays waits for all events of a user. The longest delay is less than any timeout of a host's storage.
func (a *demoMasters) wantDelays(user string) {
	a.wait("the events have arrived", func() bool { return len(a.arrivals(user)) == len(a.sent) })
	var delays []time.Duration
	for event, times := range a.arrivals(user) {
		delays = append(delays, times[0].Sub(a.sent[event]))
	}
	slices.Sort(delays)
	p99 := delays[len(delays)*99/100]
	a.t.Logf("%d events of another master: p50 %v, p99 %v, longest %v", len(delays), delays[len(delays)/2], p99, delays[len(delays)-1])
	if p99 > 5*time.Second {
		a.t.Errorf("p99 is %v", p99)
	}
}

func (a *demoMasters) wantOnce(but map[string]time.Time, users ...string) {
	for _, user := range users {
		a.wait("all events have arrived at "+user, func() bool { return len(a.arrivals(user)) == len(a.sent) })
		for event, times := range a.arrivals(user) {
			if _, mayDouble := but[event]; len(times) != 1 && !mayDouble {
				a.t.Errorf("%s has arrived %d times at %s", event, len(times), user)
			}
		}
	}
}

func (a *demoMasters) wait(what string, isSo func() bool) {
	a.t.Helper()
	for deadline := time.Now().Add(hosttest.Never); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			a.t.Fatalf("not so in time: %s", what)
		}
	}
}
