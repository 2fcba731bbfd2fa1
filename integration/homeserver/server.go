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
	"golang.org/x/net/netutil"
)

// The limits of the HTTP servers. Without them a client that does nothing keeps
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
	sendLimit  = 2 * time.Second                                     // for the notifications that are under way
	stopLimit  = drainLimit + graceLimit + sendLimit + 8*time.Second // of the whole host
)

// servers are the HTTP servers: that for clients, and that for operators, if
// there is one.
type servers struct {
	clients   *server
	operators *server // nil if there is none
	failed    chan error
}

// newServers returns servers that start and stop with the host. They are
// constructed, and so start, after all that they need.
func newServers(
	lc fx.Lifecycle, cfg config, router *echo.Echo, operators *operators, waker *waker, drain *drain, log *zap.Logger,
) *servers {
	s := &servers{failed: make(chan error, 2)}
	if cfg.operators != "" {
		s.operators = newServer(cfg.operators, operators.router(), log, s.failed)
		lc.Append(fx.StartStopHook(s.operators.start, s.operators.stop)) // first, so that it stops last
	}
	s.clients = newServer(cfg.listen, router, log, s.failed)
	s.clients.connections = cfg.connections
	s.clients.http.ConnState = drain.watch
	lc.Append(fx.StartStopHook(s.clients.start, func(ctx context.Context) error {
		drain.begin()
		s.clients.listener.Close() // whoever connects from now on goes elsewhere
		waker.stop()               // the syncs that wait have an answer, too
		drain.wait(ctx)
		return s.clients.stop(ctx)
	}))
	return s
}

// server is an HTTP server with its listener.
type server struct {
	http        *http.Server
	listen      string // where to listen
	connections int    // at a time; 0 is no limit
	log         *zap.Logger
	listener    net.Listener
	failed      chan<- error // gets the error that ended serving
}

func newServer(listen string, router http.Handler, log *zap.Logger, failed chan<- error) *server {
	return &server{
		http: &http.Server{
			Handler:           router,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          zap.NewStdLog(log.Named("http")),
		},
		listen: listen,
		log:    log,
		failed: failed,
	}
}

// start opens the listener, so that requests are taken when it returns.
func (s *server) start(ctx context.Context) (err error) {
	var config net.ListenConfig
	s.listener, err = config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	if s.connections > 0 {
		s.listener = netutil.LimitListener(s.listener, s.connections)
	}
	go func() {
		err := s.http.Serve(s.listener)
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
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
	if errors.Is(err, net.ErrClosed) {
		return nil // the listener was closed before
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
