package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

const fullyRead = "m.fully_read"

// receipt serves POST /rooms/{roomId}/receipt/{receiptType}/{eventId} (Matrix specification,
// "Receipts"). A public and a private receipt have the same effect on the counts. The host
// accepts m.fully_read and ignores it, because it has no effect on the counts.
func (a *api) receipt(c echo.Context) error {
	kind, err := pathParam(c, "receiptType")
	if err != nil {
		return err
	}
	if kind != "m.read" && kind != "m.read.private" && kind != fullyRead {
		return badRequest("M_INVALID_PARAM", "The receipt type must be m.read, m.read.private or m.fully_read.")
	}
	var request struct {
		Thread json.RawMessage `json:"thread_id"`
	}
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	e, err := a.eventOf(c)
	if err != nil {
		return err
	}
	thread := module.AllThreads
	if request.Thread != nil {
		if thread, err = threadIn(request.Thread); err != nil {
			return err
		}
		if err := a.checkThread(c.Request().Context(), kind, e, thread); err != nil {
			return err
		}
	}
	ctx, user := c.Request().Context(), callerOf(c).User
	if kind == fullyRead || thread == e.ID { // the root of a thread is in the main timeline
		return c.JSON(http.StatusOK, emptyObject)
	}
	if err := a.rooms.SetReceipt(ctx, user, e, kind, thread); err != nil {
		return err
	}
	if err := a.outbox.read(ctx, user, e.Room, thread, e.Position); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, emptyObject)
}

// threadIn returns the thread_id of a receipt, which must be text that is not empty.
func threadIn(member json.RawMessage) (thread string, err error) {
	if json.Unmarshal(member, &thread) != nil || thread == "" {
		return "", badRequest("M_INVALID_PARAM", "Invalid thread_id.")
	}
	return thread, nil
}

func (a *api) checkThread(ctx context.Context, kind string, e rooms.Event, thread string) error {
	if kind == fullyRead || thread != module.MainThread && !strings.HasPrefix(thread, "$") {
		return badRequest("M_INVALID_PARAM", "Invalid thread_id.")
	}
	isIn := thread == e.Thread || thread == e.ID
	if !isIn && thread != module.MainThread {
		var err error
		if isIn, err = a.rooms.Leads(ctx, e, thread); err != nil {
			return err
		}
	}
	if !isIn {
		return badRequest("M_INVALID_PARAM", "The event is not in this thread.")
	}
	return nil
}

// readMarkers serves POST /rooms/{roomId}/read_markers (Matrix specification, "Read and unread
// markers").
func (a *api) readMarkers(c echo.Context) error {
	room, err := pathParam(c, "roomId")
	if err != nil {
		return err
	}
	var request struct {
		Read    string `json:"m.read"`
		Private string `json:"m.read.private"`
	}
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	ctx, user := c.Request().Context(), callerOf(c).User
	var furthest int64
	for kind, id := range map[string]string{"m.read": request.Read, "m.read.private": request.Private} {
		if id == "" {
			continue
		}
		e, err := a.memberEvent(ctx, user, room, id)
		if err != nil {
			return err
		}
		if err := a.rooms.SetReceipt(ctx, user, e, kind, module.AllThreads); err != nil {
			return err
		}
		furthest = max(furthest, e.Position)
	}
	if furthest > 0 {
		if err := a.outbox.read(ctx, user, room, module.AllThreads, furthest); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, emptyObject)
}

var _ module.NotifiedEvents = notifiedEvents{}

// notifiedEvents gives GET /notifications its events.
type notifiedEvents struct{ rooms *rooms.Store }

// Events implements [module.NotifiedEvents].
func (n notifiedEvents) Events(ctx context.Context, user mxid.UserID, places []module.RoomPosition) ([]string, error) {
	positions := make([]int64, len(places))
	for i, at := range places {
		positions[i] = at.Position
	}
	events, err := n.rooms.EventsFor(ctx, user, positions)
	texts := make([]string, len(places))
	for i, at := range places {
		if e := events[at.Position]; e.Room == at.Room {
			texts[i] = e.JSON
		}
	}
	return texts, err
}
