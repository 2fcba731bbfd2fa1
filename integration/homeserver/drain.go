package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
)

// maxSilence is how long a stop waits for the clients that make no request. Other
// clients leave with the answer to their next request. A client that is silent for
// this long is unlikely to send a request just when its connection is closed.
const maxSilence = time.Second

// drain lets the clients leave before the host stops: each answer ends its
// connection. Closing all connections at once would cut off requests that the host
// has not read yet. (The kernel resets connections that were not accepted yet. A
// balancer that asks /readyz first opens none.)
type drain struct {
	limit time.Duration // for the requests that are under way

	begun atomic.Bool

	mu   sync.Mutex
	open map[net.Conn]bool
	gone chan struct{} // closed when the last connection is gone
}

func newDrain(cfg config) *drain { return &drain{limit: cfg.drain, open: map[net.Conn]bool{}} }

// closeConnections is the middleware that ends a connection with its answer.
func (d *drain) closeConnections(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Before(func() {
			if d.begun.Load() {
				c.Response().Header().Set(echo.HeaderConnection, "close")
			}
		})
		return next(c)
	}
}

// watch is the [http.Server.ConnState].
func (d *drain) watch(conn net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state {
	case http.StateNew:
		d.open[conn] = true
	case http.StateClosed, http.StateHijacked:
		delete(d.open, conn)
		if d.gone != nil && len(d.open) == 0 {
			close(d.gone)
			d.gone = nil
		}
	}
}

// begin makes each answer from now on end its connection.
func (d *drain) begin() { d.begun.Store(true) }

// wait waits until all clients have left, or have been silent for too long.
func (d *drain) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(maxSilence, d.limit))
	defer cancel()
	d.mu.Lock()
	gone := make(chan struct{})
	if d.gone = gone; len(d.open) == 0 {
		close(gone)
		d.gone = nil
	}
	d.mu.Unlock()
	select {
	case <-gone:
	case <-ctx.Done():
	}
}
