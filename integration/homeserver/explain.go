package main

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

type explainRequest struct {
	User  mxid.UserID     `json:"user"` // optional; must be the caller
	Event json.RawMessage `json:"event"`
	Facts struct {
		DisplayName string `json:"display_name"`
		MemberCount int    `json:"member_count"`
		Power       *power `json:"power"`
	} `json:"facts"` // optional; a missing fact is unknown
}

// power has the power levels of an event's sender and of members, and the levels that
// room-wide notifications and permissions need.
type power struct {
	Sender        int64                 `json:"sender"`
	Creator       bool                  `json:"creator"`
	Users         map[mxid.UserID]int64 `json:"users"` // a missing member has level 0
	Notifications map[string]int64      `json:"notifications"`
	Permissions   map[string]int64      `json:"permissions"`
}

// fact converts the power for rules; nil means unknown.
func (p *power) fact() *match.Power {
	if p == nil {
		return nil
	}
	return &match.Power{Sender: p.Sender, SenderCreator: p.Creator, Notifications: p.Notifications, Permissions: p.Permissions}
}

// of returns the level of a member; nil means unknown.
func (p *power) of(user mxid.UserID) *int64 {
	if p == nil {
		return nil
	}
	level := p.Users[user]
	return &level
}

func (r *explainRequest) facts(user mxid.UserID) match.Facts {
	return match.Facts{
		User: user, DisplayName: r.Facts.DisplayName, Power: r.Facts.Power.of(user),
		Room: match.Room{MemberCount: r.Facts.MemberCount, Power: r.Facts.Power.fact()},
	}
}

// explain serves POST /_demo/explain. It shows how a user's push rules treat an event, and why.
func (a *api) explain(c echo.Context) error {
	var request explainRequest
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	ctx := c.Request().Context()
	caller := sessions.CallerFrom(ctx).User
	switch {
	case request.User != "" && request.User != caller:
		return forbidden(foreign)
	case request.Event == nil:
		return missing("event")
	}
	event, err := match.ReadEvent(string(request.Event))
	if err != nil {
		return badRequest("M_BAD_JSON", "Field 'event' must be an object that has each name once.")
	}
	set := a.host.Rulesets(ctx, []mxid.UserID{caller})[caller]
	if set.Err != nil {
		return set.Err
	}
	if !a.explaining.TryLock() {
		return tooMany(time.Second)
	}
	defer a.explaining.Unlock()
	return c.JSON(http.StatusOK, match.Compile(set.Value.Rules).Explain(event, request.facts(caller)))
}
