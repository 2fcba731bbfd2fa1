// Command minimal is a whole Matrix host with push rules and pushers, made to be
// copied: fx, echo, zap and go-redis, and the module's route groups behind the
// host's authentication. In accounts.go are the calls that registration and
// logout owe the module, in sync.go is a /sync that waits for changes.
//
// Users live in the memory of the process and have no passwords: put your own
// accounts there. See ../homeserver for passwords, limits and the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"net"
	"net/http"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

// config is what the flags say.
type config struct{ listen, redisURL string }

func main() {
	var cfg config
	flag.StringVar(&cfg.listen, "listen", "127.0.0.1:8009", "`HOST:PORT` to listen on")
	flag.StringVar(&cfg.redisURL, "redis", "", "`URL` of a single Redis; without it one is embedded, which forgets everything")
	flag.Parse()
	fx.New(host(cfg)).Run()
}

// host is what the host provides, and the module.
func host(cfg config) fx.Option {
	return fx.Options(
		pushfx.Module,
		fx.Supply(cfg),
		fx.Provide(
			zap.NewProduction, newRedis, newEndpoints, newRouter,
			fx.Annotate(newUsers, fx.As(fx.Self()), fx.As(new(module.Accounts))), // the module asks who is logged in
		),
		fx.Invoke(listen),
	)
}

// newRedis returns the client that the module needs. It stays the host's.
func newRedis(lc fx.Lifecycle, cfg config) (redis.UniversalClient, error) {
	if cfg.redisURL == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return nil, err
		}
		lc.Append(fx.StopHook(embedded.Close))
		cfg.redisURL = "redis://" + embedded.Addr()
	}
	options, err := redis.ParseURL(cfg.redisURL)
	if err != nil {
		return nil, errors.New("-redis is no URL of a Redis") // the error would show its password
	}
	options.ContextTimeoutEnabled = true // honour the deadlines of requests
	options.DialTimeout, options.ReadTimeout, options.PoolTimeout = 1200*time.Millisecond, time.Second, 500*time.Millisecond
	client := redis.NewClient(options)
	lc.Append(fx.StopHook(client.Close))
	return client, nil
}

// newRouter serves the module's route groups, and the host's own endpoints.
func newRouter(h *endpoints) *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) { answerError(h.log, err, c) }
	for dialect, prefix := range []string{handlers.V3: "/_matrix/client/v3", handlers.R0: "/_matrix/client/r0"} {
		for _, group := range h.push.Groups {
			group.Register(e.Group(prefix), handlers.Dialect(dialect), h.users.require)
		}
		e.POST(prefix+"/register", h.register)
		e.POST(prefix+"/logout", h.logout, h.users.require)
		e.GET(prefix+"/sync", h.sync, h.users.require)
	}
	return e
}

// answerError answers what goes wrong in the host's own endpoints, in the Matrix
// form. The module's endpoints answer and log their own errors.
func answerError(log *zap.Logger, err error, c echo.Context) {
	status, body := handlers.ErrorReply(err)
	var web *echo.HTTPError
	if errors.As(err, &web) {
		status, body = web.Code, []byte(`{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
	}
	if status >= http.StatusInternalServerError && c.Request().Context().Err() == nil { // or the client hung up
		log.Error("request failed", zap.String("route", c.Path()), zap.String("error", fault.Details(err)))
	}
	_ = c.JSONBlob(status, body) // it fails if the client is gone
}

// endpoints are the host's own.
type endpoints struct {
	push     *pushfx.Push
	users    *users
	log      *zap.Logger
	stopping chan struct{} // closed when the host stops: the syncs that wait are answered
}

func newEndpoints(push *pushfx.Push, users *users, log *zap.Logger) *endpoints {
	return &endpoints{push, users, log, make(chan struct{})}
}

// listen serves HTTP from the start of the app until its stop.
func listen(lc fx.Lifecycle, cfg config, e *echo.Echo, h *endpoints, log *zap.Logger) {
	server := &http.Server{
		Handler: e, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: maxWait + 30*time.Second,
	}
	server.RegisterOnShutdown(func() { close(h.stopping) })
	lc.Append(fx.StartStopHook(func(ctx context.Context) error {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", cfg.listen)
		if err != nil {
			return err
		}
		log.Info("listening", zap.Stringer("address", listener.Addr()))
		go func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				log.Error("cannot serve", zap.Error(err))
			}
		}()
		return nil
	}, server.Shutdown))
}
