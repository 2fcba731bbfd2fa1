package main

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
)

// maxSilence is the longest wait for idle connections at the stop. A client that was silent for so long is unlikely to
// send a request just when its connection closes.
const maxSilence = time.Second

// drain makes clients leave before the host stops: each answer closes its connection. If the host closed all
// connections at once, requests that it has not read would be lost. The kernel still resets connections that the host
// has not accepted; a load balancer that asks /readyz opens no more connections.
type drain struct {
	limit time.Duration // for running requests

	begun atomic.Bool
	open  atomic.Int64 // connections
}

func newDrain(cfg config) *drain { return &drain{limit: cfg.drain} }

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

func (d *drain) watch(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		d.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		d.open.Add(-1)
	}
}

// begin makes each later answer close its connection.
func (d *drain) begin() { d.begun.Store(true) }

// wait waits until all clients have left, for at most maxSilence.
func (d *drain) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(maxSilence, d.limit))
	defer cancel()
	for d.open.Load() > 0 && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}
