package main

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
)

// relations serves the events that relate to an event, the newest first (Matrix specification, "Relationships API").
// The demo keeps few events, so all fit on one page.
func (a *api) relations(c echo.Context) error {
	e, err := a.eventOf(c)
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
	related, err := a.rooms.Relations(c.Request().Context(), e.Room, e.ID, depth)
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
