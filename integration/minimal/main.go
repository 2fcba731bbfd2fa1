// Command minimal is a Matrix host with push rules and pushers, made to be copied: login,
// logout and the module's endpoints, on fx, echo, zap and go-redis. Sessions live in memory
// and logins need no password: put your own accounts there. See ../homeserver for /sync,
// passwords, rate limits, metrics and notifications.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8009", "`HOST:PORT` to listen on")
	redisAddr := flag.String("redis", "127.0.0.1:6379", "`HOST:PORT` of a Redis server")
	flag.Parse()
	fx.New(app(*listen, *redisAddr)).Run()
}

func app(listen, redisAddr string) fx.Option {
	return fx.Options(
		pushfx.Module,
		fx.Supply(fx.Annotate(&sessions{}, fx.As(fx.Self()), fx.As(new(module.Accounts)))),
		fx.Provide(zap.NewProduction, echo.New, func(lc fx.Lifecycle) redis.UniversalClient {
			client := redis.NewClient(&redis.Options{
				Addr: redisAddr, ContextTimeoutEnabled: true, // honour the deadlines of requests
				DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second, PoolTimeout: 500 * time.Millisecond,
			})
			lc.Append(fx.StopHook(client.Close))
			return client
		}),
		fx.Invoke(fx.Annotate(func(
			groups []handlers.RouteGroup, lc fx.Lifecycle, e *echo.Echo, push module.HostService, log *zap.Logger, s *sessions,
		) {
			for dialect, prefix := range []string{handlers.V3: "/_matrix/client/v3", handlers.R0: "/_matrix/client/r0"} {
				for _, group := range groups {
					group.Register(e.Group(prefix), handlers.Dialect(dialect), s.requireUser)
				}
				e.POST(prefix+"/login", s.login(push, log))
				e.POST(prefix+"/logout", s.logout(push, log), s.requireUser)
			}
			e.Server.ReadHeaderTimeout, e.Server.ReadTimeout, e.Server.WriteTimeout = 5*time.Second, 15*time.Second, time.Minute
			lc.Append(fx.StartStopHook(func(ctx context.Context) (err error) {
				if e.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", listen); err == nil {
					go func() { log.Info("stopped serving", zap.Error(e.Start(listen))) }()
				}
				return err
			}, e.Shutdown))
		}, fx.ParamTags(pushfx.RouteGroups))),
	)
}

// sessions maps access tokens to handlers.Requester.
type sessions struct{ sync.Map }

// login logs a user in with a new device. If the module fails, the login still succeeds: the user's first read of the
// rules also creates the default rules.
func (s *sessions) login(push module.HostService, log *zap.Logger) echo.HandlerFunc {
	return func(c echo.Context) error {
		who := handlers.Requester{User: mxid.UserID("@" + c.FormValue("user") + ":localhost"), Device: rand.Text()[:10]}
		if who.User.Validate() != nil {
			return c.JSONBlob(handlers.ErrorReply(fault.New(fault.InvalidParam, "Invalid user.")))
		}
		token := rand.Text()
		s.Store(token, who)
		if err := push.EnsureDefaults(c.Request().Context(), who.User); err != nil {
			log.Warn("could not create push rules", zap.String("error", fault.Details(err)))
		}
		return c.JSON(http.StatusOK, map[string]any{"user_id": who.User, "device_id": who.Device, "access_token": token})
	}
}

// logout ends the session and then removes the pushers of its device, even if the client disconnects: the client cannot
// try again, since its token is no longer valid.
func (s *sessions) logout(push module.HostService, log *zap.Logger) echo.HandlerFunc {
	return func(c echo.Context) error {
		who, _ := handlers.RequesterFrom(c.Request().Context())
		s.Delete(tokenOf(c))
		if err := push.RemoveDevicePushers(context.WithoutCancel(c.Request().Context()), who.User, who.Device); err != nil {
			log.Warn("could not remove pushers", zap.String("error", fault.Details(err)))
		}
		return c.JSON(http.StatusOK, struct{}{})
	}
}

// requireUser is the middleware that gives the module the user and device of a request.
func (s *sessions) requireUser(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		session, found := s.Load(tokenOf(c))
		if !found {
			return c.JSONBlob(handlers.ErrorReply(handlers.ErrUnknownToken))
		}
		c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), session.(handlers.Requester))))
		return next(c)
	}
}

func tokenOf(c echo.Context) string {
	return strings.TrimPrefix(c.Request().Header.Get(echo.HeaderAuthorization), "Bearer ")
}

// LoggedIn implements [module.Accounts]. Without a device, it reports whether the user is active, as all users are
// here.
func (s *sessions) LoggedIn(_ context.Context, user mxid.UserID, device string) (bool, error) { //nolint:unparam // the interface has an error
	found := device == ""
	s.Range(func(_, session any) bool {
		found = found || session == handlers.Requester{User: user, Device: device}
		return !found
	})
	return found, nil
}
