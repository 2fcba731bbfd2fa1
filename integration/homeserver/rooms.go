package main

import (
	"crypto/rand"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
)

// rooms serves the room endpoints that push rules need. The demo has no rooms.
type rooms struct {
	serverName string
	host       module.HostService
}

func newRooms(cfg config, host module.HostService) *rooms { return &rooms{cfg.serverName, host} }

// Register implements [handlers.RouteGroup].
func (r *rooms) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.Any("/joined_rooms", methods{http.MethodGet: r.joined}.serve, auth...)
	g.Any("/rooms/:roomId/upgrade", methods{http.MethodPost: r.upgrade}.serve, auth...)
}

func (r *rooms) joined(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string][]string{"joined_rooms": {}})
}

// upgrade serves POST /rooms/{roomId}/upgrade, for any room and version. It copies the
// caller's push rules for the room to the new room (Matrix specification, "Room Upgrades",
// "Server behaviour"). A host with rooms does the same for other members when they join.
func (r *rooms) upgrade(c echo.Context) error {
	old, err := pathParam(c, "roomId")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(old, "!") {
		return badRequest("M_INVALID_PARAM", "Invalid room id.")
	}
	var request struct {
		NewVersion string `json:"new_version"`
	}
	if _, err := readObject(c, maxBodyBytes, &request); err != nil {
		return err
	}
	if request.NewVersion == "" {
		return missing("new_version")
	}
	ctx := c.Request().Context()
	replacement := "!" + rand.Text() + ":" + r.serverName
	if err := r.host.CopyRoomRules(ctx, sessions.CallerFrom(ctx).User, old, replacement); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"replacement_room": replacement})
}
