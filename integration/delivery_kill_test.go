package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

type timedGateway struct {
	url   string
	delay atomic.Int64 // nanoseconds before each answer

	mu      sync.Mutex
	arrived map[string]time.Time
	more    chan struct{} // receives after each notification
}

func newTimedGateway(tb testing.TB) *timedGateway {
	g := &timedGateway{arrived: map[string]time.Time{}, more: make(chan struct{}, 1)}
	server := httptest.NewServer(g)
	tb.Cleanup(server.Close)
	g.url = server.URL + pusher.NotifyPath
	return g
}

func (g *timedGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, _ := io.ReadAll(r.Body)
	_, rest, _ := strings.Cut(string(body), `"event_id":"`)
	event, _, _ := strings.Cut(rest, `"`)
	g.mu.Lock()
	if _, found := g.arrived[event]; !found {
		g.arrived[event] = at
	}
	g.mu.Unlock()
	select {
	case g.more <- struct{}{}:
	default:
	}
	time.Sleep(time.Duration(g.delay.Load()))
	io.WriteString(w, `{"rejected":[]}`)
}

func (g *timedGateway) wait(tb testing.TB, sent map[string]time.Time) (took []time.Duration) {
	tb.Helper()
	timeout := time.After(never)
	for {
		took = took[:0]
		g.mu.Lock()
		for event, at := range sent {
			if arrived, found := g.arrived[event]; found {
				took = append(took, arrived.Sub(at))
			}
		}
		g.mu.Unlock()
		if len(took) == len(sent) {
			return took
		}
		select {
		case <-g.more:
		case <-timeout:
			tb.Fatalf("%d of %d notifications have arrived at the gateway that works", len(took), len(sent))
		}
	}
}

// killable is a few hosts on one Redis that send to the users of one gateway.
type killable struct {
	t     *testing.T
	http  *http.Client
	hosts []*deliveryHost
	works *timedGateway

	mu   sync.Mutex
	sent map[string]time.Time
}

func startKillable(t *testing.T, hosts int) *killable {
	t.Helper()
	redistest.Require(t)
	server := redistest.Single(t)
	k := &killable{t: t, works: newTimedGateway(t), http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(k.http.CloseIdleConnections)
	push, err := pushfx.New(server.Client(t), allowLoopback(pushfx.DefaultConfig()), pushfx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range killableUsers {
		if err := push.Pushers.Set(t.Context(), killableUser(n), pusherAt(k.works.url, fmt.Sprint("key", n)), pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
	}
	for range hosts {
		k.hosts = append(k.hosts, startDeliveryHost(t, server.Addr(), rediscommit.Durability{}))
	}
	return k
}

const killableUsers = 40

func killableUser(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%d:x", n%killableUsers)) }

// send asks one host after the other until one accepts an event.
func (k *killable) send(name string, n int) {
	event, at := fmt.Sprintf("$%s%06d", name, n), time.Now()
	request := sendRequest{Event: fmt.Sprintf(chaosEvent, event), Members: []mxid.UserID{killableUser(n)}}
	for host := n; k.t.Context().Err() == nil; host++ {
		ctx, cancel := context.WithTimeout(k.t.Context(), chaosTimeout)
		taken := k.hosts[host%len(k.hosts)].send(ctx, k.http, request)
		cancel()
		if taken {
			break
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sent[event] = at
}

// run sends events for a while, to one user after the other and by one host after the other. It returns the longest
// time of a notification when all have arrived.
func (k *killable) run(name string, d time.Duration) time.Duration {
	k.t.Helper()
	k.sent = map[string]time.Time{}
	var sending sync.WaitGroup
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	for n, end := 0, time.Now().Add(d); time.Now().Before(end); n++ {
		sending.Go(func() { k.send(name, n) })
		<-every.C
	}
	sending.Wait()
	longest := slices.Max(k.works.wait(k.t, k.sent))
	k.t.Logf("%s the kill: %d notifications, 0 lost, the latest after %v", name, len(k.sent), longest.Round(time.Millisecond))
	return longest
}

func TestNotificationsContinueWithinSixSecondsOfAKill(t *testing.T) {
	t.Parallel()
	k := startKillable(t, 3)
	k.works.delay.Store(int64(200 * time.Millisecond))
	before := k.run("before", time.Second)
	kill := time.AfterFunc(time.Second, func() { k.hosts[0].signal(t, syscall.SIGKILL) })
	defer kill.Stop()
	if during := k.run("during", 3*time.Second); during > 6*time.Second+before {
		t.Errorf("the latest notification took %v", during)
	}
}
