package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// hostility is what a push gateway does to those who send to it.
type hostility struct {
	name   string
	answer func(g *hostileGateway, w http.ResponseWriter, r *http.Request)
}

var hostilities = []hostility{
	{"hangs", func(_ *hostileGateway, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	{"drips its header", func(_ *hostileGateway, w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			drip(r.Context(), conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
		}
	}},
	{"drips its body", func(_ *hostileGateway, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		drip(r.Context(), flushed{w}, strings.Repeat(" ", 1000))
	}},
	{"sends 10 GB", func(g *hostileGateway, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(10<<30))
		chunk := make([]byte, 64<<10)
		for range 10 << 30 / len(chunk) {
			n, err := w.Write(chunk)
			if g.written.Add(int64(n)); err != nil {
				return
			}
		}
	}},
	{"sends 10,000 headers", func(_ *hostileGateway, w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			io.WriteString(conn, manyHeaders)
		}
	}},
	{"redirects to loopback", func(g *hostileGateway, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, g.inner.URL+"/admin/shutdown", http.StatusTemporaryRedirect)
	}},
}

// manyHeaders is an answer that would be right, but for its size.
var manyHeaders = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n" + strings.Repeat("X-Header: value\r\n", 10_000) + "\r\n" + `{"rejected":[]}`

// drip writes a byte a second until the other side has gone.
func drip(ctx context.Context, w io.Writer, text string) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for i := range len(text) {
		if _, err := io.WriteString(w, text[i:i+1]); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// flushed sends each byte at once.
type flushed struct{ http.ResponseWriter }

func (f flushed) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if err == nil {
		err = http.NewResponseController(f.ResponseWriter).Flush()
	}
	return n, err
}

// hostileGateway is a push gateway that does as it likes, beside an inner server
// that nobody is to reach through it.
type hostileGateway struct {
	url     string
	inner   *httptest.Server
	reached atomic.Int64 // requests that the inner server got
	written atomic.Int64 // bytes of bodies
	asked   atomic.Int64 // requests
	answer  atomic.Pointer[hostility]

	mu         sync.Mutex
	open, most int // connections
}

func startHostileGateway(tb testing.TB) *hostileGateway {
	g := &hostileGateway{}
	g.inner = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { g.reached.Add(1) }))
	tb.Cleanup(g.inner.Close)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		g.asked.Add(1)
		if h := g.answer.Load(); h != nil {
			h.answer(g, w, r)
			return
		}
		io.WriteString(w, `{"rejected":[]}`)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		g.mu.Lock()
		defer g.mu.Unlock()
		switch state {
		case http.StateNew:
			g.open++
			g.most = max(g.most, g.open)
		case http.StateClosed, http.StateHijacked:
			g.open--
		}
	}
	server.Start()
	tb.Cleanup(server.Close)
	g.url = server.URL + pusher.NotifyPath
	return g
}

func (g *hostileGateway) connections() (open, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, g.most
}

// besideHostile is a host that sends to a gateway that is well and to a hostile
// one.
type besideHostile struct {
	tb      testing.TB
	push    *pushfx.Push
	hostile *hostileGateway

	mu      sync.Mutex
	arrived map[string]time.Time // events, at the gateway that is well
	more    chan struct{}        // has a value after one has arrived
	stop    func()
}

const hostileUsers = 20 // at each of the two gateways

func wellUser(n int) mxid.UserID    { return mxid.UserID(fmt.Sprintf("@well%d:x", n%hostileUsers)) }
func hostileUser(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@hostile%d:x", n%hostileUsers)) }

func startBesideHostile(tb testing.TB) *besideHostile {
	h := &besideHostile{tb: tb, hostile: startHostileGateway(tb), arrived: map[string]time.Time{}, more: make(chan struct{}, 1)}
	well := httptest.NewServer(http.HandlerFunc(h.arrive))
	tb.Cleanup(well.Close)
	server := redistest.Single(tb)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance()})
	tb.Cleanup(func() { client.Close() })
	cfg := allowLoopback(pushfx.DefaultConfig())
	cfg.Delivery.DrainTimeout = 0 // what hangs is left
	push, err := pushfx.New(client, cfg, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err == nil {
		err = push.Check(tb.Context())
	}
	for n := range hostileUsers {
		for user, url := range map[mxid.UserID]string{wellUser(n): well.URL + pusher.NotifyPath, hostileUser(n): h.hostile.url} {
			if err == nil {
				err = push.Pushers.Set(tb.Context(), user, pusherAt(url, string(user)), pusher.KeepOthers)
			}
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	h.push = push
	h.stop = runPush(tb, push)
	return h
}

// arrive is the gateway that is well.
func (h *besideHostile) arrive(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, _ := io.ReadAll(r.Body)
	_, rest, _ := strings.Cut(string(body), `"event_id":"`)
	event, _, _ := strings.Cut(rest, `"`)
	h.mu.Lock()
	if _, found := h.arrived[event]; !found {
		h.arrived[event] = at
	}
	h.mu.Unlock()
	select {
	case h.more <- struct{}{}:
	default:
	}
	io.WriteString(w, `{"rejected":[]}`)
}

// send hands an event over.
func (h *besideHostile) send(event string, user mxid.UserID) {
	h.tb.Helper()
	e := module.Event{JSON: fmt.Sprintf(`{"event_id":%q,"room_id":"!r:x","type":"m.room.message","sender":"@sender:x","content":{}}`, event)}
	if err := sendEvent(h.tb.Context(), h.push.Notifier, e, user); err != nil {
		h.tb.Fatal(err)
	}
}

// wait returns when each of these events has arrived.
func (h *besideHostile) wait(events map[string]time.Time) (took []time.Duration) {
	h.tb.Helper()
	timeout := time.After(30 * time.Second)
	for {
		took = took[:0]
		h.mu.Lock()
		for event, sent := range events {
			if at, found := h.arrived[event]; found {
				took = append(took, at.Sub(sent))
			}
		}
		h.mu.Unlock()
		if len(took) == len(events) {
			return took
		}
		select {
		case <-h.more:
		case <-timeout:
			h.tb.Fatalf("%d of %d notifications have arrived at the gateway that is well", len(took), len(events))
		}
	}
}

// run sends a number of events to each of the gateways, one to each in every
// interval, and returns how long those to the gateway that is well took.
func (h *besideHostile) run(name string, events int, interval time.Duration) []time.Duration {
	h.tb.Helper()
	sent := map[string]time.Time{}
	every := time.NewTicker(interval)
	defer every.Stop()
	for n := range events {
		h.send(fmt.Sprintf("$%s-hostile-%d", name, n), hostileUser(n))
		event := fmt.Sprintf("$%s-%d", name, n)
		sent[event] = time.Now()
		h.send(event, wellUser(n))
		<-every.C
	}
	return h.wait(sent)
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Whatever a gateway does, others get all of their notifications, and it takes
// neither memory nor connections nor the host to where it may not go.
func TestAHostileGatewayHarmsNobody(t *testing.T) {
	redistest.Require(t)
	const events = 100
	for i := range hostilities {
		t.Run(hostilities[i].name, func(t *testing.T) {
			h := startBesideHostile(t)
			h.run("before", hostileUsers, time.Millisecond)
			before, goroutines := heapBytes(), runtime.NumGoroutine()
			h.hostile.answer.Store(&hostilities[i])
			h.run("beside", events, 5*time.Millisecond)
			if grown := heapBytes() - before; grown > 16<<20 {
				t.Errorf("the heap has grown by %d bytes", grown)
			}
			// Each request has a goroutine, and one or two on either side of its connection.
			if grown := runtime.NumGoroutine() - goroutines; grown > 6*hostileUsers {
				t.Errorf("%d more goroutines", grown)
			}
			asked, written := h.hostile.asked.Load(), h.hostile.written.Load()
			if asked <= hostileUsers {
				t.Errorf("it was asked %d times", asked)
			}
			if _, most := h.hostile.connections(); most > 2*hostileUsers {
				t.Errorf("%d connections at a time to it, for %d pushers", most, hostileUsers)
			}
			// What the network holds on the way counts, too.
			if most := (asked - hostileUsers) * (16 << 20); written > most {
				t.Errorf("%d bytes were taken of %d answers", written, asked-hostileUsers)
			}
			if n := h.hostile.reached.Load(); n > 0 {
				t.Errorf("%d requests went where it sent them", n)
			}
			h.stop()
			eventually(t, "no connection to it is left", func() bool {
				open, _ := h.hostile.connections()
				return open <= hostileUsers // idle ones from before, which are kept
			})
		})
	}
}

// BenchmarkDeliveryBesideAHostileGateway measures how long notifications take
// from before they are decided to their gateway, while another gateway gets as
// many: on a host where that one is well, and on one where it is hostile, in
// turns, so that what else the machine does meets both.
func BenchmarkDeliveryBesideAHostileGateway(b *testing.B) {
	const (
		interval = 5 * time.Millisecond
		turn     = 100
	)
	for i := range hostilities {
		b.Run(strings.ReplaceAll(hostilities[i].name, " ", "-"), func(b *testing.B) {
			well, hostile := startBesideHostile(b), startBesideHostile(b)
			well.run("warm", turn, interval)
			hostile.run("warm", turn, interval)
			hostile.hostile.answer.Store(&hostilities[i])
			var without, beside []time.Duration
			for done := 0; done < b.N; done += turn {
				name, events := fmt.Sprint(done), min(turn, b.N-done)
				without = append(without, well.run(name, events, interval)...)
				beside = append(beside, hostile.run(name, events, interval)...)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ms(quantile(without, 0.99)), "ms-p99-without")
			b.ReportMetric(ms(quantile(beside, 0.99)), "ms-p99-beside")
			b.ReportMetric(float64(quantile(beside, 0.5))/float64(quantile(without, 0.5)), "p50-ratio")
			b.ReportMetric(float64(quantile(beside, 0.99))/float64(quantile(without, 0.99)), "p99-ratio")
		})
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile is the time that a share of all is not above.
func quantile(all []time.Duration, share float64) time.Duration {
	slices.Sort(all)
	return all[min(int(float64(len(all))*share), len(all)-1)]
}
