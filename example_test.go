package pushfx_test

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
)

func Example() {
	fx.New(
		pushfx.Module,
		fx.Provide(zap.NewProduction, echo.New, newRedis), // the host's own
		fx.Invoke(fx.Annotate(serve, fx.ParamTags(``, ``, pushfx.RouteGroups))),
	).Run()
}

func newRedis() redis.UniversalClient {
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true,
		DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second, // leave time for a second try
	})
}

func serve(lc fx.Lifecycle, e *echo.Echo, groups []handlers.RouteGroup) {
	for _, group := range groups {
		group.Register(e.Group("/_matrix/client/v3"), handlers.V3, requireUser)
		group.Register(e.Group("/_matrix/client/r0"), handlers.R0, requireUser)
	}
	lc.Append(fx.StartStopHook(func() { go e.Start("127.0.0.1:8008") }, e.Shutdown))
}

// requireUser is the host's authentication. It tells the module who the user is.
func requireUser(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().Header.Get("Authorization") != "Bearer token" {
			return c.JSON(http.StatusUnauthorized, map[string]string{"errcode": "M_UNKNOWN_TOKEN", "error": "Unknown token."})
		}
		who := handlers.Requester{User: "@alice:example.org", Device: "PHONE"}
		c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		return next(c)
	}
}
