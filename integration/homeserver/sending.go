package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// maxMembers limits the members in one request.
const maxMembers = 1000

// sending serves the demo's own endpoints, which Matrix does not have. A room need not be created: each request names
// the members of the room and the content of an event.
type sending struct {
	outbox *outbox
	rooms  *rooms.Store
}

func newSending(outbox *outbox, rooms *rooms.Store) *sending {
	return &sending{outbox, rooms}
}

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
	case !strings.HasPrefix(r.RoomID, "!"):
		return badRequest("M_INVALID_PARAM", "Invalid room id.")
	case r.EventID != "" && !strings.HasPrefix(r.EventID, "$"):
		return badRequest("M_INVALID_PARAM", "Invalid event id.")
	}
	for _, user := range r.Members {
		if user.Validate() != nil {
			return badRequest("M_INVALID_PARAM", "A member is not a user id.")
		}
	}
	return nil
}

// event returns the event as clients see it.
func (r *sendRequest) event(sender mxid.UserID, now time.Time) (string, error) {
	text, err := json.Marshal(struct {
		EventID  string          `json:"event_id"`
		RoomID   string          `json:"room_id"`
		Type     string          `json:"type"`
		Sender   mxid.UserID     `json:"sender"`
		StateKey *string         `json:"state_key,omitempty"`
		Time     int64           `json:"origin_server_ts"`
		Content  json.RawMessage `json:"content"`
	}{r.EventID, r.RoomID, r.Type, sender, r.StateKey, now.UnixMilli(), r.Content})
	return string(text), err
}

// change returns what the event changes in its room. A membership event has precedence over the members in the request.
func (r *sendRequest) change() rooms.Change {
	change := rooms.Change{Members: r.Members}
	var content struct {
		Membership rooms.Membership `json:"membership"`
	}
	if r.Type != "m.room.member" || r.StateKey == nil || json.Unmarshal(r.Content, &content) != nil {
		return change
	}
	user := mxid.UserID(*r.StateKey)
	if user.Validate() == nil && slices.Contains([]rooms.Membership{rooms.Joined, rooms.Invited, rooms.Left, "ban"}, content.Membership) {
		change.User, change.Is = user, content.Membership
	}
	return change
}

// row returns the row of an event for the outbox.
func (r *sendRequest) row(e rooms.Event, sender mxid.UserID, members rooms.Members) row {
	name, _, _ := strings.Cut(strings.TrimPrefix(string(sender), "@"), ":")
	others, change, reads := []mxid.UserID{sender}, r.change(), mxid.UserID("")
	if change.User != "" {
		others = append(others, change.User)
		if change.Is != rooms.Invited {
			reads = change.User
		}
	}
	return row{
		ID: e.ID, Room: r.RoomID, Members: members.Users(), Others: others, Sender: sender, Reads: reads, Power: r.Power,
		Event: module.Event{
			JSON: e.JSON, RoomName: r.RoomName, SenderName: name, Position: e.Position, Thread: e.Thread,
			Room: match.Room{MemberCount: max(1, len(members.Users(rooms.Joined))), Power: r.Power.fact()},
		},
	}
}

// send serves POST /_demo/send. It answers 200 when the event has been handed over. If a client repeats a request with
// the same event_id, the first event stays. After a 503, a host may still hand the event over.
func (s *sending) send(c echo.Context) error {
	var request sendRequest
	if _, err := readObject(c, maxBodyBytes, &request); err != nil {
		return err
	}
	if err := request.check(); err != nil {
		return err
	}
	if request.EventID == "" {
		request.EventID = "$" + rand.Text()
	}
	ctx := c.Request().Context()
	sender := sessions.CallerFrom(ctx).User
	text, err := request.event(sender, time.Now())
	if err != nil {
		return err
	}
	e, members, err := s.rooms.Add(ctx, request.RoomID, rooms.Event{ID: request.EventID, JSON: text}, request.change())
	if errors.Is(err, rooms.ErrTooManyMembers) {
		return badRequest("M_INVALID_PARAM", "The room has too many members.")
	}
	if err != nil {
		return err
	}
	if !e.Redacted {
		if err := s.outbox.send(ctx, request.row(e, sender, members)); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"event_id": e.ID, "position": e.Position})
}
