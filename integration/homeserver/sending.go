package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// maxMembers limits the members in one request.
const maxMembers = 1000

type sendRequest struct {
	EventID  string          `json:"event_id"` // optional
	RoomID   string          `json:"room_id"`
	RoomName string          `json:"room_name"` // optional
	Members  []mxid.UserID   `json:"members"`   // may include the sender, who gets no notification
	Type     string          `json:"type"`
	StateKey *string         `json:"state_key"` // for state events
	Content  json.RawMessage `json:"content"`
	Power    *power          `json:"power"` // optional
}

func (r *sendRequest) check() error {
	switch {
	case r.RoomID == "":
		return missing("room_id")
	case r.Type == "":
		return missing("type")
	case !strings.HasPrefix(string(r.Content), "{"):
		return missing("content")
	case len(r.Members) == 0:
		return missing("members")
	case len(r.Members) > maxMembers:
		return badRequest("M_INVALID_PARAM", fmt.Sprintf("More than %d members.", maxMembers))
	}
	for name, text := range map[string]string{
		"event_id": r.EventID, "room_id": r.RoomID, "room_name": r.RoomName, "type": r.Type, "state_key": r.stateKey(),
	} {
		if len(text) > rooms.MaxIDBytes {
			return badRequest("M_INVALID_PARAM", fmt.Sprintf("Field '%s' has more than %d bytes.", name, rooms.MaxIDBytes))
		}
	}
	switch {
	case !rooms.ValidID(r.RoomID, "!"):
		return badRequest("M_INVALID_PARAM", "Invalid room id.")
	case r.EventID != "" && !rooms.ValidID(r.EventID, "$"):
		return badRequest("M_INVALID_PARAM", "Invalid event id.")
	}
	for _, user := range r.Members {
		if user.Validate() != nil {
			return badRequest("M_INVALID_PARAM", "A member is not a user id.")
		}
	}
	return nil
}

func (r *sendRequest) stateKey() string {
	if r.StateKey == nil {
		return ""
	}
	return *r.StateKey
}

// maxEventBytes limits an event (Matrix specification, "Size limits").
const maxEventBytes = 64 << 10

// event returns the event as clients see it. It refuses what the module would refuse, before the event has a position.
func (r *sendRequest) event(sender mxid.UserID, now time.Time) (string, error) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // a <, > or & would take six bytes
	err := encoder.Encode(struct {
		EventID  string          `json:"event_id"`
		RoomID   string          `json:"room_id"`
		Type     string          `json:"type"`
		Sender   mxid.UserID     `json:"sender"`
		StateKey *string         `json:"state_key,omitempty"`
		Time     int64           `json:"origin_server_ts"`
		Content  json.RawMessage `json:"content"`
	}{r.EventID, r.RoomID, r.Type, sender, r.StateKey, now.UnixMilli(), r.Content})
	if err != nil {
		return "", err
	}
	if text.Len() > maxEventBytes {
		return "", tooLarge("The event is too large.")
	}
	if _, err := match.ReadEvent(text.String()); err != nil {
		return "", badRequest("M_BAD_JSON", "The event must have each name once.")
	}
	return strings.TrimSpace(text.String()), nil
}

// change returns what the event changes in its room. A membership event has precedence over the members in the request.
func (r *sendRequest) change(event string) rooms.Change {
	change := rooms.Change{Members: r.Members, Name: r.RoomName}
	change.User, change.Is = readEvent(event).membership()
	var content struct {
		Name string `json:"name"`
	}
	if r.Type == "m.room.name" && r.StateKey != nil && *r.StateKey == "" && json.Unmarshal(r.Content, &content) == nil &&
		len(content.Name) <= rooms.MaxIDBytes {
		change.Name = content.Name
	}
	return change
}

// send serves POST /_demo/send. It answers 200 when the event is stored, and visible to the sender's syncs. If a part of
// Redis is away, the users there get the event later, from the outbox: no other user needs to repeat the request. If a
// client repeats a request with the same event_id, the first event stays. After a 503, the event may have been stored.
func (a *api) send(c echo.Context) error {
	var request sendRequest
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	if err := request.check(); err != nil {
		return err
	}
	if request.EventID == "" {
		request.EventID = "$" + rand.Text()
	}
	ctx := c.Request().Context()
	user := sessions.CallerFrom(ctx).User
	text, err := request.event(user, time.Now())
	if err != nil {
		return err
	}
	e := rooms.Event{Room: request.RoomID, ID: request.EventID, JSON: text}
	if request.Power != nil {
		power, err := json.Marshal(request.Power)
		if err != nil {
			return err
		}
		e.Power = string(power)
	}
	if e, err = a.outbox.add(ctx, e, request.change(text), user); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"event_id": e.ID, "position": e.Position})
}
