package delivery

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/pusher"
)

// gateway is a push gateway in this process, which can be away.
type gateway struct {
	address string
	arrived func(body []byte, at time.Time) // called for each notification

	mu     sync.Mutex
	server *http.Server // nil while it is away
	count  int
	wanted int
	done   chan struct{} // closed when as many have arrived as are wanted
	last   []byte        // the body that came last
}

// newGateway returns a gateway on a free port, which is away until it opens.
func newGateway() (*gateway, error) {
	g := &gateway{address: "127.0.0.1:0", done: make(chan struct{})}
	return g, g.open()
}

func (g *gateway) url() string { return "http://" + g.address + pusher.NotifyPath }

func (g *gateway) open() error {
	listener, err := net.Listen("tcp", g.address)
	if err != nil {
		return err
	}
	g.address = listener.Addr().String()
	server := &http.Server{Handler: g}
	g.mu.Lock()
	g.server = server
	g.mu.Unlock()
	go server.Serve(listener)
	return nil
}

// close has the gateway refuse connections.
func (g *gateway) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.server != nil {
		g.server.Close()
		g.server = nil
	}
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if g.arrived != nil {
		g.arrived(body, at)
	}
	io.WriteString(w, `{"rejected":[]}`)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = body
	if g.count++; g.count == g.wanted {
		close(g.done)
	}
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
