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

// drainLimit is how long a stop waits for clients to leave. A client that makes a
// request meanwhile leaves with its answer. One that is silent for so long is
// unlikely to make a request just when its connection is closed.
const drainLimit = time.Second

// drain lets the clients leave before the host stops: every answer then ends its
// connection. Closing all connections at once would cut off requests that are on
// their way. (The kernel resets connections that were not accepted yet; a
// balancer that asks /readyz before opens none.)
type drain struct {
	begun atomic.Bool

	mu   sync.Mutex
	open map[net.Conn]bool
	gone chan struct{} // is closed when the last connection has gone
}

func newDrain() *drain { return &drain{open: map[net.Conn]bool{}} }

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

// begin has every answer from now on end its connection.
func (d *drain) begin() { d.begun.Store(true) }

// wait waits until all clients have left, or for the time that they have.
func (d *drain) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
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
