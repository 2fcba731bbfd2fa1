package main

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
)

// newRouter returns the homeserver's router: the route groups of the module and the host, which need a token, and the
// endpoints that need none. An unknown path is 404 with any token or none.
func newRouter(
	groups []handlers.RouteGroup, auth echo.MiddlewareFunc, login *login, known wellKnown, limits *limits, drain *drain,
	guard *guard, push *pushfx.Push, log *zap.Logger,
) *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = newErrorHandler(log)
	e.Use(logRequests(log), drain.closeConnections, guard.protect, allowBrowsers(), recoverPanics())

	e.RouteNotFound("/*", echo.NotFoundHandler, limits.addresses)
	e.Any("/", methods{http.MethodGet: page}.serve, limits.addresses)
	e.Any("/healthz", methods{http.MethodGet: alive}.serve)
	e.Any("/.well-known/matrix/client", methods{http.MethodGet: known.get}.serve, limits.addresses)
	e.Any("/_matrix/client/versions", methods{http.MethodGet: versions(push.UnstableFeatures())}.serve, limits.addresses)

	for dialect, prefix := range []string{handlers.V3: "/_matrix/client/v3", handlers.R0: "/_matrix/client/r0"} {
		e.Any(prefix+"/login", methods{http.MethodGet: login.flows, http.MethodPost: login.post}.serve, limits.addresses)
		for _, group := range groups {
			group.Register(e.Group(prefix), handlers.Dialect(dialect), auth)
		}
	}
	return e
}

// methods has the handlers of one path.
type methods map[string]echo.HandlerFunc

// serve calls the method's handler. Other methods get 405 in the Matrix form.
func (m methods) serve(c echo.Context) error {
	handle, found := m[c.Request().Method]
	if !found {
		allow := append(slices.Sorted(maps.Keys(m)), http.MethodOptions)
		c.Response().Header().Set(echo.HeaderAllow, strings.Join(allow, ", "))
		return echo.ErrMethodNotAllowed
	}
	return handle(c)
}
