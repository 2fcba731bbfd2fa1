package main

import (
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
)

// newRouter returns the homeserver's router: the route groups of the module and the host, which need a token, and the
// endpoints that need none. An unknown path is 404 with any token or none.
func newRouter(
	cfg config, groups []handlers.RouteGroup, a *api, auth echo.MiddlewareFunc, drain *drain, guard *guard, log *zap.Logger,
) *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = newErrorHandler(log)
	e.Use(logRequests(log), drain.closeConnections, guard.protect, allowBrowsers(), recoverPanics())

	e.GET("/", newPage(cfg), a.limits.addresses)
	e.GET("/healthz", alive)
	e.GET("/_matrix/client/versions", a.versions, a.limits.addresses)
	const relations = "/_matrix/client/v1/rooms/:roomId/relations/:eventId"
	for _, path := range []string{relations, relations + "/:relType", relations + "/:relType/:eventType"} {
		e.GET(path, a.relations, auth)
	}
	for dialect, prefix := range []string{handlers.V3: "/_matrix/client/v3", handlers.R0: "/_matrix/client/r0"} {
		for _, group := range groups {
			group.Register(e.Group(prefix), handlers.Dialect(dialect), auth)
		}
	}
	handlers.RegisterUnstable(e.Group("/_matrix/client/unstable"), groups, auth)
	return e
}
