package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/mxid"
)

// eventOf returns the event in the path. It returns an error for a user outside the room.
func (a *api) eventOf(c echo.Context) (e rooms.Event, err error) {
	room, err := pathParam(c, "roomId")
	if err != nil {
		return e, err
	}
	id, err := pathParam(c, "eventId")
	if err != nil {
		return e, err
	}
	return a.memberEvent(c.Request().Context(), callerOf(c).User, room, id)
}

func (a *api) memberEvent(ctx context.Context, user mxid.UserID, room, id string) (rooms.Event, error) {
	in, err := a.rooms.Room(ctx, room, "")
	switch {
	case err != nil:
		return rooms.Event{}, err
	case in.Members[user] != rooms.Joined:
		return rooms.Event{}, forbidden("You are not in this room.")
	}
	e, found, err := a.rooms.Event(ctx, room, id)
	if err == nil && !found {
		err = notFound("Event not found.")
	}
	return e, err
}

// event serves GET /rooms/{roomId}/event/{eventId}, by which clients fetch the event of a push.
func (a *api) event(c echo.Context) error {
	e, err := a.eventOf(c)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, []byte(e.JSON))
}

// redact serves PUT /rooms/{roomId}/redact/{eventId}/{txnId} (Matrix specification,
// "Redactions"). Any member may redact any event, again and again. The redaction notifies
// nobody.
func (a *api) redact(c echo.Context) error {
	e, err := a.eventOf(c)
	if err != nil {
		return err
	}
	transaction, err := pathParam(c, "txnId")
	if err != nil {
		return err
	}
	var request struct {
		Reason string `json:"reason"`
	}
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	ctx, user := c.Request().Context(), callerOf(c).User
	sum := sha256.Sum256([]byte(strings.Join([]string{string(user), e.Room, e.ID, transaction}, " ")))
	id := "$" + base64.RawURLEncoding.EncodeToString(sum[:])
	text, err := json.Marshal(map[string]any{
		"event_id": id, "room_id": e.Room, "type": "m.room.redaction", "sender": user, "redacts": e.ID,
		"origin_server_ts": time.Now().UnixMilli(), "content": map[string]string{"redacts": e.ID, "reason": request.Reason},
	})
	if err != nil {
		return err
	}
	if err := a.outbox.redact(ctx, e, rooms.Event{Room: e.Room, ID: id, JSON: string(text)}); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"event_id": id})
}

// upgrade serves POST /rooms/{roomId}/upgrade, for any room and version. It copies the
// caller's push rules for the room to the new room (Matrix specification, "Room Upgrades",
// "Server behaviour"). A host with rooms does the same for other members when they join.
func (a *api) upgrade(c echo.Context) error {
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
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	if request.NewVersion == "" {
		return missing("new_version")
	}
	ctx := c.Request().Context()
	replacement := "!" + rand.Text() + ":" + a.cfg.serverName
	if err := a.host.CopyRoomRules(ctx, sessions.CallerFrom(ctx).User, old, replacement); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"replacement_room": replacement})
}
