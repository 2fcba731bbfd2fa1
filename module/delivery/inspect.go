package delivery

import (
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Waiting describes a backlog for operators. It has no pushkey and no content. Times
// are by the clock of the queue.
type Waiting struct {
	User          mxid.UserID
	Pusher        string // see [PusherID]
	Gateway, App  string // see [GatewayName]; the app_id
	Notifications int
	Oldest        time.Time // when Notify got the first of them
	Claimed       bool      // whether a host has claimed it, until Due
	Due           time.Time // time of the next attempt

	Attempts int       // failures in a row
	Since    time.Time // of the first failure; zero for none
	Status   int       // of the last answer, 0 for none
	Class    string    // why there was no answer, for example "dns"; "status" if there was one
}

// ReadBacklog reads a backlog of a [module.DeliveryQueue], except of a [module.FanOut].
func ReadBacklog(b module.Backlog) (w Waiting, err error) {
	m, err := content.ReadMeta(b.First.Meta)
	if err != nil {
		return Waiting{}, err
	}
	t := content.ReadTrouble(b.Trouble)
	w = Waiting{
		User: m.User, Pusher: b.Claim.Target.Name, Notifications: b.Waiting, Oldest: time.UnixMilli(m.Added),
		Claimed: b.Claim.Token != 0, Due: b.Due, Attempts: t.Attempts, Status: t.Status, Class: string(t.Class),
	}
	w.Gateway, w.App, _ = strings.Cut(m.Gate, " ")
	if t.Since > 0 {
		w.Since = time.UnixMilli(t.Since)
	}
	return w, nil
}

// GatewayOf returns the [GatewayName] of a pusher. Ok is false for a pusher without
// notifications: its kind is not http, it is disabled, or its URL is invalid.
func GatewayOf(user mxid.UserID, p pusher.Pusher) (name string, ok bool) {
	d, ok := content.ReadTarget(user, p, content.Limits{})
	if !ok {
		return "", false
	}
	return d.Gateway, true
}

// GatewayName returns scheme, host and port of a URL in canonical form.
func GatewayName(of string) (name string, ok bool) { return content.GatewayName(of) }
