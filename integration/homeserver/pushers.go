package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

const (
	isOK       = "ok"
	isSending  = "sending"
	isWaiting  = "waiting"
	isInactive = "inactive" // its browser has not returned the token of the first push
	isDisabled = "disabled" // disabled, or of a kind that gets no notifications
)

// pusherState is a pusher with its backlog. Times are in milliseconds.
type pusherState struct {
	ID      string `json:"id"` // as in [arrival]
	AppID   string `json:"app_id"`
	Pushkey string `json:"pushkey"`
	Device  string `json:"device"`
	Format  string `json:"format,omitempty"`
	Gateway string `json:"gateway,omitempty"`
	State   string `json:"state"`

	Backlog   int    `json:"backlog"`              // number of notifications
	Failing   int64  `json:"failing_ms,omitempty"` // time since the first failure after the last success
	NextTry   int64  `json:"next_try_ms,omitempty"`
	Attempts  int    `json:"attempts,omitempty"`
	LastError string `json:"last_error,omitempty"` // the status of the last answer, or why there was none
}

// pusherStates serves GET /_demo/pushers, the delivery state of a user's pushers, and the unread count. Operators use
// pushctl.
func (a *api) pusherStates(c echo.Context) error {
	ctx := c.Request().Context()
	user := sessions.CallerFrom(ctx).User
	list, err := a.push.Pushers.List(ctx, user)
	if err != nil {
		return err
	}
	log, err := a.queue.Log(ctx, user)
	if err != nil {
		return err
	}
	waiting := map[string]delivery.Waiting{} // by pusher
	for _, w := range delivery.ReadLog(user, log) {
		waiting[w.Pusher] = w
	}
	all, now := []pusherState{}, a.push.Clock.Now()
	for _, p := range list.All() {
		state := newPusherState(user, p)
		if w, found := waiting[delivery.PusherID(user, p.Key)]; found {
			state.fill(w, now)
		}
		all = append(all, state)
	}
	unread, err := a.unread.Rooms(ctx, user)
	if err != nil {
		return err
	}
	sum, rooms := 0, 0
	for _, room := range unread {
		if n := room.Sum().Notifications; n > 0 {
			sum, rooms = sum+n, rooms+1
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"pushers": all, "rooms": rooms, "unread": sum})
}

func newPusherState(user mxid.UserID, p pusher.Pusher) pusherState {
	var data struct {
		Format string `json:"format"`
	}
	_ = json.Unmarshal([]byte(p.Data), &data) // a format that is not a string has no effect
	state := pusherState{
		ID: string(p.Digest()), AppID: p.AppID, Pushkey: p.Pushkey, Device: p.DeviceDisplayName, Format: data.Format, State: isOK,
	}
	var ok bool
	if state.Gateway, ok = delivery.GatewayOf(user, p); !ok {
		state.State = isDisabled
	} else if p.IsInactive() {
		state.State = isInactive
	}
	return state
}

func (p *pusherState) fill(w delivery.Waiting, now time.Time) {
	p.Backlog, p.Attempts, p.LastError = w.Notifications, w.Attempts, w.Class
	if w.Status > 0 {
		p.LastError = strconv.Itoa(w.Status)
	}
	if !w.Since.IsZero() {
		p.Failing = now.Sub(w.Since).Milliseconds()
	}
	switch {
	case p.State == isDisabled, p.State == isInactive:
	case w.Claimed:
		p.State = isSending
	default:
		p.State, p.NextTry = isWaiting, max(0, w.Due.Sub(now).Milliseconds())
	}
}
