package main

import (
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
)

// newRouter returns the homeserver's router: the route groups of the module and the host, which need a token, and the
// endpoints that need none. An unknown path is 404 with any token or none.
func newRouter(
	cfg config, groups []handlers.RouteGroup, auth echo.MiddlewareFunc, login *login, limits *limits, drain *drain,
	guard *guard, push *pushfx.Push, log *zap.Logger,
) *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = newErrorHandler(log)
	e.Use(logRequests(log), drain.closeConnections, guard.protect, allowBrowsers(), recoverPanics())

	e.GET("/", newPage(cfg), limits.addresses)
	e.GET("/healthz", alive)
	e.GET("/_matrix/client/versions", versions(push.UnstableFeatures()), limits.addresses)

	for dialect, prefix := range []string{handlers.V3: "/_matrix/client/v3", handlers.R0: "/_matrix/client/r0"} {
		e.GET(prefix+"/login", login.flows, limits.addresses)
		e.POST(prefix+"/login", login.post, limits.addresses)
		for _, group := range groups {
			group.Register(e.Group(prefix), handlers.Dialect(dialect), auth)
		}
	}
	handlers.RegisterUnstable(e.Group("/_matrix/client/unstable"), groups, auth)
	return e
}
