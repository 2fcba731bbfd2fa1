package main

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
)

// mountRelations mounts GET /rooms/{roomId}/relations/{eventId}, optionally followed by a relation type and an event
// type.
func mountRelations(e *echo.Echo, r *roomRoutes, auth echo.MiddlewareFunc) {
	const path = "/_matrix/client/v1/rooms/:roomId/relations/:eventId"
	for _, more := range []string{"", "/:relType", "/:relType/:eventType"} {
		e.GET(path+more, r.relations, auth)
	}
}

// relations serves the events that relate to an event, the newest first (Matrix specification, "Relationships API").
// The demo keeps few events, so all fit on one page.
func (r *roomRoutes) relations(c echo.Context) error {
	e, err := r.eventOf(c)
	if err != nil {
		return err
	}
	wanted := map[string]string{}
	for _, name := range c.ParamNames()[2:] {
		if wanted[name], err = pathParam(c, name); err != nil {
			return err
		}
	}
	depth := 1
	if c.QueryParam("recurse") == "true" {
		depth = rooms.MaxDepth
	}
	related, err := r.rooms.Relations(c.Request().Context(), e.Room, e.ID, depth)
	if err != nil {
		return err
	}
	chunk := []json.RawMessage{}
	for _, e := range related {
		if matches(wanted["relType"], rooms.RelationOf(e.JSON).Type) && matches(wanted["eventType"], readEvent(e.JSON).Type) {
			chunk = append(chunk, json.RawMessage(e.JSON))
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"chunk": chunk, "recursion_depth": depth})
}

func matches(wanted, has string) bool { return wanted == "" || wanted == has }
