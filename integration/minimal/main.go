// Command minimal is a complete Matrix host with push rules and pushers, made to be
// copied: login, logout, /sync and the module's endpoints, on fx, echo, zap and go-redis.
// Sessions live in memory and logins need no password: put your own accounts there.
// See ../homeserver for passwords, rate limits, metrics and notifications.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"net"
	"net/http"
	"strconv"
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
		fx.Provide(
			zap.NewProduction, echo.New,
			func(lc fx.Lifecycle) redis.UniversalClient {
				client := redis.NewClient(&redis.Options{
					Addr: redisAddr, ContextTimeoutEnabled: true, // honour the deadlines of requests
					DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second, PoolTimeout: 500 * time.Millisecond,
				})
				lc.Append(fx.StopHook(client.Close))
				return client
			},
			fx.Annotate(newHost, fx.As(fx.Self()), fx.As(new(module.Accounts))),
		),
		fx.Invoke(func(lc fx.Lifecycle, e *echo.Echo, push *pushfx.Push, h *host) {
			h.push = push // built after the host, which is the module's Accounts
			h.register(e)
			e.HideBanner, e.HidePort = true, true
			e.Server.ReadHeaderTimeout, e.Server.ReadTimeout, e.Server.WriteTimeout = 5*time.Second, 15*time.Second, time.Minute
			e.Server.RegisterOnShutdown(h.stop)
			lc.Append(fx.StartStopHook(func(ctx context.Context) (err error) {
				if e.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", listen); err == nil {
					go func() { h.log.Info("stopped serving", zap.Error(e.Start(listen))) }()
				}
				return err
			}, e.Shutdown))
		}),
	)
}

// host has the endpoints that are not the module's, and the sessions.
type host struct {
	log      *zap.Logger
	push     *pushfx.Push
	sessions sync.Map        // access token to handlers.Requester
	running  context.Context //nolint:containedctx // ends at shutdown, and with it the syncs that wait
	stop     context.CancelFunc
}

func newHost(log *zap.Logger) *host {
	ctx, stop := context.WithCancel(context.Background())
	return &host{log: log, running: ctx, stop: stop}
}

func (h *host) register(e *echo.Echo) {
	for dialect, prefix := range []string{handlers.V3: "/_matrix/client/v3", handlers.R0: "/_matrix/client/r0"} {
		for _, group := range h.push.Groups {
			group.Register(e.Group(prefix), handlers.Dialect(dialect), h.requireUser)
		}
		e.POST(prefix+"/login", h.login)
		e.POST(prefix+"/logout", h.logout, h.requireUser)
		e.GET(prefix+"/sync", h.sync, h.requireUser)
	}
}

// login logs a user in with a new device. An error of the module is logged and not
// returned: the first read of the rules creates them, too.
func (h *host) login(c echo.Context) error {
	who := handlers.Requester{User: mxid.UserID("@" + c.FormValue("user") + ":localhost"), Device: rand.Text()[:10]}
	if who.User.Validate() != nil {
		return c.JSONBlob(handlers.ErrorReply(fault.New(fault.InvalidParam, "Invalid user.")))
	}
	token := rand.Text()
	h.sessions.Store(token, who)
	h.logFailed("login", who.User, h.push.Host.EnsureDefaults(c.Request().Context(), who.User))
	return c.JSON(http.StatusOK, map[string]any{"user_id": who.User, "device_id": who.Device, "access_token": token})
}

// logout ends the session and then removes the pushers of its device, even if the client
// hangs up: it cannot try again, since its token is no longer valid.
func (h *host) logout(c echo.Context) error {
	who, _ := handlers.RequesterFrom(c.Request().Context())
	h.sessions.Delete(tokenOf(c))
	ctx := context.WithoutCancel(c.Request().Context())
	h.logFailed("logout", who.User, h.push.Host.RemoveDevicePushers(ctx, who.User, who.Device))
	return c.JSON(http.StatusOK, struct{}{})
}

// sync waits for push rules that are newer than the token. A real host puts the
// module's token into its own, next to those of its other streams.
func (h *host) sync(c echo.Context) error {
	who, _ := handlers.RequesterFrom(c.Request().Context())
	since, _ := strconv.ParseInt(c.QueryParam("since"), 10, 64) // 0 at the first sync
	millis, _ := strconv.Atoi(c.QueryParam("timeout"))
	waiting, cancel := context.WithTimeout(c.Request().Context(), min(time.Duration(millis)*time.Millisecond, 30*time.Second))
	defer cancel()
	defer context.AfterFunc(h.running, cancel)()
	for {
		update, err := h.push.Sync.Since(c.Request().Context(), who.User, since)
		h.logFailed("sync", who.User, err) // the token stays the same, so a later sync sends the rules
		events := []any{}
		if update.New {
			content := json.RawMessage(update.Content.AppendJSON(nil))
			events = append(events, map[string]any{"type": module.AccountDataType, "content": content})
		} else {
			select {
			case <-update.Changed:
				continue
			case <-waiting.Done():
			}
		}
		return c.JSON(http.StatusOK, map[string]any{
			"next_batch": strconv.FormatInt(update.Token, 10), "account_data": map[string]any{"events": events},
		})
	}
}

func (h *host) logFailed(at string, user mxid.UserID, err error) {
	if err != nil {
		h.log.Warn("push: a call failed", zap.String("at", at), zap.String("user_id", string(user)), zap.String("error", fault.Details(err)))
	}
}

// requireUser is the middleware that tells the module which user and device make a request.
func (h *host) requireUser(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		session, found := h.sessions.Load(tokenOf(c))
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

// LoggedIn implements [module.Accounts]. Without a device it reports whether the user is
// active; here every user is.
func (h *host) LoggedIn(_ context.Context, user mxid.UserID, device string) (bool, error) { //nolint:unparam // the interface has an error
	found := device == ""
	h.sessions.Range(func(_, session any) bool {
		found = found || session == handlers.Requester{User: user, Device: device}
		return !found
	})
	return found, nil
}
