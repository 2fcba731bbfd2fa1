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

// The limits of the HTTP servers. Without them, idle clients would keep their connections for ever.
const (
	headerTimeout = 5 * time.Second  // for the headers, which clients send at once
	readTimeout   = 15 * time.Second // headers and 64 KiB of body, over a slow network
	writeTimeout  = time.Minute      // after the headers: for the body, the operations of up to 5 s each, and the answer
	idleTimeout   = 2 * time.Minute  // longer than the pauses of most clients

	maxHeaderBytes = 64 << 10 // enough for a percent-encoded rule id of 10 KiB
)

// stopLimit is the longest time that the whole host takes to stop: clients leave, requests end, events are handed over,
// notifications end, and the other parts close their connections.
func (c config) stopLimit() time.Duration { return maxSilence + 3*c.drain + 8*time.Second }

type servers struct {
	clients   *server
	operators *server // nil without -operators
	failed    chan error
}

// newServers returns servers that start and stop with the host. The container constructs the servers last, so they
// start after the parts that serve requests.
func newServers(
	lc fx.Lifecycle, cfg config, router *echo.Echo, operators *operators, waker *waker, drain *drain, log *zap.Logger,
) *servers {
	s := &servers{failed: make(chan error, 2)}
	if cfg.operators != "" {
		s.operators = newServer(cfg.operators, operators.router(), cfg.drain, log, s.failed)
		lc.Append(fx.StartStopHook(s.operators.start, s.operators.stop)) // started first, so that it stops last
	}
	s.clients = newServer(cfg.listen, router, cfg.drain, log, s.failed)
	s.clients.connections = int(cfg.connections)
	s.clients.listener = cfg.listener
	s.clients.http.ConnState = drain.watch
	lc.Append(fx.StartStopHook(s.clients.start, func(ctx context.Context) error {
		drain.begin()
		s.clients.listener.Close() // new clients go to another host
		waker.stop()               // waiting syncs are answered
		drain.wait(ctx)
		return s.clients.stop(ctx)
	}))
	return s
}

type server struct {
	http        *http.Server
	listen      string        // where to listen
	connections int           // open at a time; 0: unlimited
	drain       time.Duration // longest wait at the stop for running requests
	log         *zap.Logger
	listener    net.Listener
	failed      chan<- error // gets the error that ended serving
}

func newServer(listen string, router http.Handler, drain time.Duration, log *zap.Logger, failed chan<- error) *server {
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
		drain:  drain,
		log:    log,
		failed: failed,
	}
}

// start opens the listener. Clients can connect when it returns.
func (s *server) start(ctx context.Context) (err error) {
	if s.listener == nil {
		if s.listener, err = listen(ctx, s.listen); err != nil {
			return err
		}
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

func listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	return listener, nil
}

// stop waits for running requests for at most -drain, then closes their connections.
func (s *server) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.drain)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests were cut off", zap.Duration("after", s.drain))
		err = s.http.Close()
	}
	if errors.Is(err, net.ErrClosed) {
		return nil // the listener was closed before
	}
	return err
}

func (s *server) address() net.Addr { return s.listener.Addr() }

// url returns the server's URL for clients on this machine.
func (s *server) url() string { return urlOf(s.address().String()) }

func urlOf(address string) string {
	host, port, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}
