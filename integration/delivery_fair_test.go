package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	fairUsers    = 40                    // users of the working gateway
	fairInterval = 10 * time.Millisecond // between events for these users
	fairDelay    = time.Second           // the longest delay by other users and gateways
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

// fairness is a few hosts on one Redis. They send to users of a working gateway, while other users and gateways
// try to delay these notifications.
type fairness struct {
	t      *testing.T
	client *redis.Client
	http   *http.Client
	hosts  []*deliveryHost
	works  *timedGateway

	mu     sync.Mutex
	events int
}

func startFairness(t *testing.T, hosts int) *fairness {
	redistest.Require(t)
	server := redistest.Single(t)
	f := &fairness{
		t: t, client: server.Client(t), works: newTimedGateway(t),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	t.Cleanup(f.http.CloseIdleConnections)
	f.setPushers(fairUsers, f.user, func(int) pusher.Pusher { return pusherAt(f.works.url, "key") })
	for range hosts {
		f.hosts = append(f.hosts, startDeliveryHost(t, server.Addr(), rediscommit.Durability{}))
	}
	return f
}

func (f *fairness) user(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%d:x", n%fairUsers)) }

// setPushers sets n pushers: number i is each(i), for the user of(i).
func (f *fairness) setPushers(n int, of func(int) mxid.UserID, each func(int) pusher.Pusher) {
	f.t.Helper()
	push, err := pushfx.New(f.client, allowLoopback(pushfx.DefaultConfig()), pushfx.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	const callers = 8
	var setting sync.WaitGroup
	for caller := range callers {
		setting.Go(func() {
			for i := caller; i < n; i += callers {
				p := each(i)
				p.Pushkey = fmt.Sprint(p.Pushkey, i)
				if err := push.Pushers.Set(f.t.Context(), of(i), p, pusher.KeepOthers); err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	setting.Wait()
}

// send asks one host after the other until one accepts an event. It returns the event's id.
func (f *fairness) send(first int, users ...mxid.UserID) (event string) {
	f.mu.Lock()
	f.events++
	event = fmt.Sprintf("$%06d", f.events)
	f.mu.Unlock()
	request := sendRequest{Event: fmt.Sprintf(chaosEvent, event), Members: users}
	for n := first; f.t.Context().Err() == nil; n++ {
		ctx, cancel := context.WithTimeout(f.t.Context(), chaosTimeout)
		taken := f.hosts[n%len(f.hosts)].send(ctx, f.http, request)
		cancel()
		if taken {
			break
		}
	}
	return event
}

// run sends events for a while, to one user after the other and by one host after the other. It returns when all
// notifications have arrived.
func (f *fairness) run(d time.Duration) timings {
	f.t.Helper()
	sent := map[string]time.Time{}
	var mu sync.Mutex
	var sending sync.WaitGroup
	every := time.NewTicker(fairInterval)
	defer every.Stop()
	for n, end := 0, time.Now().Add(d); time.Now().Before(end); n++ {
		sending.Go(func() {
			at := time.Now()
			event := f.send(n, f.user(n))
			mu.Lock()
			defer mu.Unlock()
			sent[event] = at
		})
		<-every.C
	}
	sending.Wait()
	return f.works.wait(f.t, sent)
}

// attack calls do once in each interval, until the test calls end.
func (f *fairness) attack(interval time.Duration, do func()) (end func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			do()
			_ = sleep(ctx, interval)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// fullSize returns the size of a test: full with -chaos, otherwise short.
func fullSize[T any](short, full T) T {
	if *chaosTime > 0 {
		return full
	}
	return short
}

func length() time.Duration { return fullSize(3*time.Second, 20*time.Second) }

type timings []time.Duration

func (all timings) p99() time.Duration     { return quantile(all, 0.99) }
func (all timings) longest() time.Duration { return quantile(all, 1) }

func (all timings) String() string {
	return fmt.Sprintf("%d notifications, 0 lost: p50 %v, p99 %v, longest %v", len(all),
		quantile(all, 0.5).Round(time.Millisecond), all.p99().Round(time.Millisecond), all.longest().Round(time.Millisecond))
}

func (f *fairness) compare(before, during timings, limit time.Duration) {
	f.t.Helper()
	f.t.Logf("before the attack: %v", before)
	f.t.Logf("during the attack: %v", during)
	if p99 := during.p99(); p99 > before.p99()+limit {
		f.t.Errorf("the attack delays others: p99 is %v, and was %v before", p99, before.p99())
	}
}

func manyGateways(t *testing.T, n int, handler http.HandlerFunc) (urls []string) {
	t.Helper()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { server.Close() })
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go server.Serve(listener)
		urls = append(urls, "http://"+listener.Addr().String()+pusher.NotifyPath)
	}
	return urls
}

func always(user mxid.UserID) func(int) mxid.UserID { return func(int) mxid.UserID { return user } }

func TestAStoppingHostDoesNotDelayNotifications(t *testing.T) {
	t.Parallel()
	f := startFairness(t, 2)
	hanging := manyGateways(t, 1, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })[0]
	hangs := func(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@hangs%d:x", n)) }
	f.setPushers(fairUsers, hangs, func(int) pusher.Pusher { return pusherAt(hanging, "hangs") })
	before := f.run(2 * time.Second)
	for n := range fairUsers {
		f.send(n, hangs(n))
	}
	stop := time.AfterFunc(time.Second, func() { f.hosts[0].signal(t, syscall.SIGTERM) })
	defer stop.Stop()
	during := f.run(4 * time.Second)
	t.Logf("before the stop: %v", before)
	t.Logf("during the stop: %v", during)
	// The other host looks each second, which TestAnOrderlyStopDelaysNothing measures in virtual time. A claim that the
	// stopping host did not end would last five.
	if during.longest() > before.longest()+2*fairDelay {
		t.Errorf("the latest notification took %v", during.longest())
	}
}

func TestNotificationsContinueWithinSixSecondsOfAKill(t *testing.T) {
	t.Parallel()
	f := startFairness(t, 3)
	f.works.delay.Store(int64(200 * time.Millisecond))
	before := f.run(time.Second)
	kill := time.AfterFunc(time.Second, func() { f.hosts[0].signal(t, syscall.SIGKILL) })
	defer kill.Stop()
	during := f.run(length())
	t.Logf("before the kill: %v", before)
	t.Logf("during the kill: %v", during)
	if during.longest() > 6*time.Second+before.longest() {
		t.Errorf("the latest notification took %v", during.longest())
	}
}

// The gateways get as many notifications before they hang as after. Each has two pushers, so that a thousand of
// them use all requests that a host makes to slow gateways.
func TestHangingGatewaysDoNotDelayOtherUsers(t *testing.T) {
	t.Parallel()
	n := fullSize(100, 1000)
	f := startFairness(t, 1)
	var hang atomic.Bool
	gateways := manyGateways(t, n, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if hang.Load() {
			<-r.Context().Done()
		}
		io.WriteString(w, `{"rejected":[]}`)
	})
	users := make([]mxid.UserID, 2*n)
	for i := range users {
		users[i] = mxid.UserID(fmt.Sprintf("@hangs%d:x", i))
	}
	f.setPushers(len(users), func(i int) mxid.UserID { return users[i] }, func(i int) pusher.Pusher { return pusherAt(gateways[i%n], "hangs") })
	defer f.attack(time.Second, func() { f.send(0, users...) })()
	before := f.run(length())
	hang.Store(true)
	time.Sleep(time.Second)
	during := f.run(length())
	f.compare(before, during, fullSize(fairDelay, max(before.p99()/2, 100*time.Millisecond)))
	f.checkNewGateway()
	resident := residentBytes(t, f.hosts[0].command.Process.Pid)
	t.Logf("%d gateways hang; the host has %d MB", n, resident>>20)
	if resident > 300<<20 {
		t.Errorf("the host has %d bytes in memory", resident)
	}
}

func (f *fairness) checkNewGateway() {
	f.t.Helper()
	const user = "@new:x"
	f.setPushers(1, always(user), func(int) pusher.Pusher {
		p := pusherAt(f.works.url, "new")
		p.AppID = "new"
		return p
	})
	at := time.Now()
	took := f.works.wait(f.t, map[string]time.Time{f.send(0, user): at})
	f.t.Logf("a new gateway: %v", took[0].Round(time.Millisecond))
	if took[0] > fairDelay {
		f.t.Errorf("the first notification of a new gateway took %v", took[0])
	}
}

func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip(err) // not on Linux
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
