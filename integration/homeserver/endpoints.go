package main

import (
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
)

// api serves the host's own endpoints: of Matrix as far as the demo has them, and the demo's, which Matrix does not have.
type api struct {
	cfg        config
	sessions   *sessions.Sessions
	rooms      *rooms.Store
	outbox     *outbox
	waker      *waker
	limits     *limits
	forgetting *forgetting
	log        *zap.Logger

	push   *pushfx.Push
	host   module.HostService
	rules  module.SyncService
	unread module.UnreadService
	queue  module.DeliveryQueue

	explaining sync.Mutex // an explanation occupies a core
}

func newAPI(
	cfg config, sessions *sessions.Sessions, rooms *rooms.Store, outbox *outbox, waker *waker, limits *limits, forgetting *forgetting, log *zap.Logger,
	push *pushfx.Push, host module.HostService, rules module.SyncService, unread module.UnreadService, queue module.DeliveryQueue,
) *api {
	return &api{
		cfg: cfg, sessions: sessions, rooms: rooms, outbox: outbox, waker: waker, limits: limits, forgetting: forgetting, log: log,
		push: push, host: host, rules: rules, unread: unread, queue: queue,
	}
}

// Register implements [handlers.RouteGroup].
func (a *api) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.GET("/login", a.loginFlows, a.limits.addresses)
	g.POST("/login", a.logIn, a.limits.addresses)
	g.POST("/logout", a.logout, auth...)
	g.POST("/logout/all", a.logoutAll, auth...)
	g.GET("/account/whoami", whoami, auth...)
	g.GET("/account/3pid", a.threePIDs, auth...)
	g.POST("/account/password", a.changePassword, auth...)
	g.POST("/account/deactivate", a.deactivate, auth...)
	g.GET("/devices", a.devices, auth...)
	g.GET("/capabilities", a.capabilities, auth...)

	for _, path := range []string{"/user/:userId/account_data/:type", "/user/:userId/rooms/:roomId/account_data/:type"} {
		g.GET(path, a.accountData, auth...)
		g.PUT(path, a.setAccountData, auth...)
	}
	g.POST("/user/:userId/filter", a.addFilter, auth...)
	g.GET("/user/:userId/filter/:filterId", a.filter, auth...)
	g.GET("/sync", a.sync, auth...)

	g.GET("/rooms/:roomId/event/:eventId", a.event, auth...)
	g.PUT("/rooms/:roomId/redact/:eventId/:txnId", a.redact, auth...)
	g.POST("/rooms/:roomId/receipt/:receiptType/:eventId", a.receipt, auth...)
	g.POST("/rooms/:roomId/read_markers", a.readMarkers, auth...)
	g.POST("/rooms/:roomId/upgrade", a.upgrade, auth...)
}

// alive serves GET /healthz. It does not ask Redis, because a failure of Redis must not
// restart the host.
func alive(c echo.Context) error { return c.String(http.StatusOK, "ok\n") }

func (a *api) versions(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]any{
		"versions": []string{
			"r0.6.1", "v1.1", "v1.2", "v1.3", "v1.4", "v1.5", "v1.6", "v1.7", "v1.8", "v1.9",
			"v1.10", "v1.11", "v1.12", "v1.13", "v1.14", "v1.15", "v1.16", "v1.17",
		},
		"unstable_features": a.push.UnstableFeatures(),
	})
}
