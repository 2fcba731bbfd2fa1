package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// receipts serves the endpoints that mark messages as read.
type receipts struct {
	rooms  *roomRoutes
	outbox *outbox
}

func newReceipts(rooms *roomRoutes, outbox *outbox) *receipts { return &receipts{rooms, outbox} }

// Register implements [handlers.RouteGroup].
func (r *receipts) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.POST("/rooms/:roomId/receipt/:receiptType/:eventId", r.post, auth...)
	g.POST("/rooms/:roomId/read_markers", r.markers, auth...)
}

const fullyRead = "m.fully_read"

// post serves POST /rooms/{roomId}/receipt/{receiptType}/{eventId} (Matrix specification,
// "Receipts"). A public and a private receipt have the same effect on the counts. The host
// accepts m.fully_read and ignores it, because it has no effect on the counts.
func (r *receipts) post(c echo.Context) error {
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
	room, e, err := r.rooms.eventOf(c)
	if err != nil {
		return err
	}
	thread := module.AllThreads
	if request.Thread != nil {
		if thread, err = threadIn(request.Thread); err != nil {
			return err
		}
		if err := r.checkThread(c.Request().Context(), kind, room, e, thread); err != nil {
			return err
		}
	}
	ctx, user := c.Request().Context(), callerOf(c).User
	if kind == fullyRead || thread == e.ID { // the root of a thread is in the main timeline
		return c.JSON(http.StatusOK, emptyObject)
	}
	if err := r.rooms.rooms.SetReceipt(ctx, user, room, e, kind, thread); err != nil {
		return err
	}
	if err := r.outbox.read(ctx, user, room, thread, e.Position); err != nil {
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

func (r *receipts) checkThread(ctx context.Context, kind, room string, e rooms.Event, thread string) error {
	if kind == fullyRead || thread != module.MainThread && !strings.HasPrefix(thread, "$") {
		return badRequest("M_INVALID_PARAM", "Invalid thread_id.")
	}
	isIn := thread == e.Thread || thread == e.ID
	if !isIn && thread != module.MainThread {
		var err error
		if isIn, err = r.rooms.rooms.Leads(ctx, room, e, thread); err != nil {
			return err
		}
	}
	if !isIn {
		return badRequest("M_INVALID_PARAM", "The event is not in this thread.")
	}
	return nil
}

// markers serves POST /rooms/{roomId}/read_markers (Matrix specification, "Read and unread
// markers").
func (r *receipts) markers(c echo.Context) error {
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
		e, err := r.rooms.memberEvent(ctx, user, room, id)
		if err != nil {
			return err
		}
		if err := r.rooms.rooms.SetReceipt(ctx, user, room, e, kind, module.AllThreads); err != nil {
			return err
		}
		furthest = max(furthest, e.Position)
	}
	if furthest > 0 {
		if err := r.outbox.read(ctx, user, room, module.AllThreads, furthest); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, emptyObject)
}

var _ module.NotifiedEvents = notifiedEvents{}

// notifiedEvents gives GET /notifications its events.
type notifiedEvents struct {
	rooms *rooms.Store
	log   *zap.Logger
}

// roomsWait is how long GET /notifications waits for the events of rooms.
const roomsWait = 2 * time.Second

// Events implements [module.NotifiedEvents]. It leaves out the events of rooms that it cannot read, such as rooms on a
// lost master, and returns an error only if it can read no room.
func (n notifiedEvents) Events(ctx context.Context, user mxid.UserID, places []module.RoomPosition) ([]string, error) {
	byRoom := map[string][]int{} // indexes of places
	for i, at := range places {
		byRoom[at.Room] = append(byRoom[at.Room], i)
	}
	ctx, cancel := context.WithTimeout(ctx, roomsWait)
	defer cancel()
	texts, errs := make([]string, len(places)), make(chan error, len(byRoom))
	for room, at := range byRoom {
		go func() { errs <- n.readRoom(ctx, user, room, places, at, texts) }()
	}
	var failed error
	unread := 0
	for range byRoom {
		if err := <-errs; err != nil {
			failed, unread = err, unread+1
		}
	}
	if unread == len(byRoom) {
		return texts, failed
	}
	logFailed(n.log, "notifications", user, failed)
	return texts, nil
}

// readRoom sets the texts of a user's events in a room, whose places are at the indexes at.
func (n notifiedEvents) readRoom(
	ctx context.Context, user mxid.UserID, room string, places []module.RoomPosition, at []int, texts []string,
) error {
	members, err := n.rooms.Members(ctx, room)
	if err != nil || members[user] == "" {
		return err
	}
	for _, i := range at {
		e, found, err := n.rooms.EventAt(ctx, room, places[i].Position)
		if err != nil {
			return err
		}
		if found && !e.Redacted {
			texts[i] = e.JSON
		}
	}
	return nil
}
