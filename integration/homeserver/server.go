package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/fx"
	"go.uber.org/zap"
)

// The limits of the HTTP server. Without them a client that does nothing keeps
// a connection for ever.
const (
	headerTimeout = 5 * time.Second  // headers come in one go
	readTimeout   = 15 * time.Second // headers and 64 KiB of body, on a bad line
	writeTimeout  = time.Minute      // from the headers on: the body, the 5 s of each operation, the answer
	idleTimeout   = 2 * time.Minute  // longer than the usual pause of a client

	maxHeaderBytes = 64 << 10 // a rule id of 10 KiB fits in, percent-encoded

	// graceLimit is for the requests that run when the server stops. Every
	// operation of the module has ended by then.
	graceLimit = 6 * time.Second
	stopLimit  = graceLimit + 2*time.Second // of the whole host
)

// server is the HTTP server with its listener.
type server struct {
	http     *http.Server
	listen   string // where to listen
	log      *zap.Logger
	listener net.Listener
	failed   chan error // gets the error that ended serving
}

// newServer returns a server of the router that starts and stops with the
// host. It is constructed, and so starts, after all that the router needs.
func newServer(lc fx.Lifecycle, cfg config, router *echo.Echo, waker *waker, log *zap.Logger) *server {
	s := &server{
		http: &http.Server{
			Handler:           router,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          zap.NewStdLog(log.Named("http")),
			ConnState:         newDoor(cfg.connections).watch,
		},
		listen: cfg.listen,
		log:    log,
		failed: make(chan error, 1),
	}
	s.http.RegisterOnShutdown(waker.stop) // the syncs that wait have an answer, too
	lc.Append(fx.StartStopHook(s.start, s.stop))
	return s
}

// start opens the listener, so that requests are taken when it returns.
func (s *server) start(ctx context.Context) (err error) {
	var config net.ListenConfig
	s.listener, err = config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	go func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("cannot serve: %w", err)
		}
	}()
	return nil
}

// stop lets the requests that run finish, for a while.
func (s *server) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, graceLimit)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests were cut off", zap.Duration("after", graceLimit))
		err = s.http.Close()
	}
	return err
}

// address is where the server listens.
func (s *server) address() net.Addr { return s.listener.Addr() }

// url is where the server is reached from this machine.
func (s *server) url() string {
	host, port, _ := net.SplitHostPort(s.address().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}
