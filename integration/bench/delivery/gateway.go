package delivery

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module/pusher"
)

// gateway is a push gateway in this process, which can fail.
type gateway struct {
	server  *http.Server
	address string
	fails   atomic.Bool

	mu      sync.Mutex
	arrived func(body []byte, at time.Time) // called for each notification that was taken
	count   int
	wanted  int
	done    chan struct{} // closed when as many have arrived as are wanted
	last    []byte        // the body that came last
}

func newGateway() (*gateway, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gateway{address: listener.Addr().String(), arrived: func([]byte, time.Time) {}, done: make(chan struct{})}
	g.server = &http.Server{Handler: g}
	go g.server.Serve(listener)
	return g, nil
}

func (g *gateway) close() { g.server.Close() }

func (g *gateway) url() string { return "http://" + g.address + pusher.NotifyPath }

// fail has the gateway take nothing, or take all again.
func (g *gateway) fail(fails bool) { g.fails.Store(fails) }

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if g.fails.Load() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	io.WriteString(w, `{"rejected":[]}`)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrived(body, at)
	g.last = body
	if g.count++; g.count == g.wanted {
		close(g.done)
	}
}

// notify has a function called for each notification from now on, one at a time.
func (g *gateway) notify(arrived func(body []byte, at time.Time)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrived = arrived
}

// expect begins to count anew.
func (g *gateway) expect(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count, g.wanted, g.done = 0, n, make(chan struct{})
}

// wait waits until as many have arrived as are expected.
func (g *gateway) wait(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		return fmt.Errorf("%d of %d notifications have arrived: %w", g.count, g.wanted, ctx.Err())
	}
}

func (g *gateway) lastBody() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}
