package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

type hostileAnswer struct {
	name   string
	answer func(g *hostileGateway, w http.ResponseWriter, r *http.Request)
}

var hostilities = []hostileAnswer{
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
	{"cuts the connection", func(*hostileGateway, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	{"answers with GOAWAY of HTTP/2", func(_ *hostileGateway, w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			io.WriteString(conn, goAway)
		}
	}},
	{"redirects to loopback", func(g *hostileGateway, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, g.inner.URL+"/admin/shutdown", http.StatusTemporaryRedirect)
	}},
}

// goAway is the frames SETTINGS and GOAWAY, each without content.
const goAway = "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00"

// manyHeaders is a correct answer that is too large.
var manyHeaders = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n" + strings.Repeat("X-Header: value\r\n", 10_000) + "\r\n" + `{"rejected":[]}`

// drip writes a byte per second until the client disconnects.
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

type flushed struct{ http.ResponseWriter }

func (f flushed) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if err == nil {
		err = http.NewResponseController(f.ResponseWriter).Flush()
	}
	return n, err
}

// hostileGateway is a push gateway with a hostile answer. It redirects to an inner server, which no request may
// reach.
type hostileGateway struct {
	url     string
	inner   *httptest.Server
	reached atomic.Int64 // requests to the inner server
	written atomic.Int64 // bytes of bodies
	asked   atomic.Int64 // all requests
	answer  atomic.Pointer[hostileAnswer]

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

type besideHostile struct {
	tb      testing.TB
	push    *pushfx.Push
	works   *hosttest.Gateway
	hostile *hostileGateway
	stop    func()
}

const hostileUsers = 20 // at each of the two gateways

func workingUser(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@works%d:x", n%hostileUsers)) }
func hostileUser(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@hostile%d:x", n%hostileUsers)) }

func startBesideHostile(tb testing.TB) *besideHostile {
	h := &besideHostile{tb: tb, works: hosttest.NewGateway(tb), hostile: startHostileGateway(tb)}
	server := redistest.Single(tb)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: hosttest.NoMaintenance()})
	tb.Cleanup(func() { client.Close() })
	cfg := hosttest.AllowLoopback(pushfx.DefaultConfig())
	cfg.Delivery.DrainTimeout = 0 // a stop does not wait for hanging requests
	push, err := pushfx.New(client, cfg, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err == nil {
		err = push.Check(tb.Context())
	}
	for n := range hostileUsers {
		for user, url := range map[mxid.UserID]string{workingUser(n): h.works.URL, hostileUser(n): h.hostile.url} {
			if err == nil {
				err = push.Pushers.Set(tb.Context(), user, hosttest.PusherAt(url, string(user)), pusher.KeepOthers)
			}
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	h.push = push
	h.stop = hosttest.RunPush(tb, push)
	return h
}

func (h *besideHostile) send(event string, user mxid.UserID) {
	h.tb.Helper()
	e := hosttest.InRoom(fmt.Sprintf(`{"event_id":%q,"room_id":"!r:x","type":"m.room.message","sender":"@sender:x","content":{}}`, event))
	if err := hosttest.SendEvent(h.tb.Context(), h.push.Notifier, e, user); err != nil {
		h.tb.Fatal(err)
	}
}

// run sends events to both gateways, one to each per interval. It returns when all have arrived at the gateway that
// works.
func (h *besideHostile) run(name string, events int, interval time.Duration) {
	h.tb.Helper()
	missing := map[string]bool{}
	every := time.NewTicker(interval)
	defer every.Stop()
	for n := range events {
		h.send(fmt.Sprintf("$%s-hostile-%d", name, n), hostileUser(n))
		event := fmt.Sprintf("$%s-%d", name, n)
		missing[event] = true
		h.send(event, workingUser(n))
		<-every.C
	}
	h.works.Wait(h.tb, func(all []receiver.Notification) bool {
		for _, n := range all {
			delete(missing, n.EventID)
		}
		return len(missing) == 0
	})
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A hostile gateway costs other users no notification, and the host little memory and few connections. It cannot
// make the host send requests to other servers.
func TestAHostileGatewayDoesNoHarm(t *testing.T) {
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
			if asked <= hostileUsers || asked > 10*events {
				t.Errorf("it got %d requests", asked)
			}
			if _, most := h.hostile.connections(); most > 2*hostileUsers {
				t.Errorf("%d connections at a time to it, for %d pushers", most, hostileUsers)
			}
			// Bytes in the buffers of the network count, too.
			if most := (asked - hostileUsers) * (16 << 20); written > most {
				t.Errorf("%d bytes were taken of %d answers", written, asked-hostileUsers)
			}
			if n := h.hostile.reached.Load(); n > 0 {
				t.Errorf("%d requests followed a redirect", n)
			}
			h.stop()
			hosttest.Eventually(t, "no connection to it is left", func() bool {
				open, _ := h.hostile.connections()
				return open <= hostileUsers // idle connections of earlier requests
			})
		})
	}
}
