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
	Last     time.Time // of the last failure; zero for none
	Status   int       // of the last answer, 0 for none
	Class    string    // why there was no answer, for example "dns"; "status" if there was one
}

// ReadBacklog describes a backlog of a [module.DeliveryQueue]. The backlog of a
// [module.FanOut] cannot be described.
func ReadBacklog(b module.Backlog) (w Waiting, err error) {
	m, err := content.ReadMeta(b.First.Meta)
	if err != nil {
		return Waiting{}, err
	}
	w = ReadTrouble(b.Trouble)
	w.User, w.Pusher, w.Notifications, w.Oldest = m.User, b.Claim.Target.Name, b.Waiting, time.UnixMilli(m.Added)
	w.Claimed, w.Due = b.Claim.Token != 0, b.Due
	w.Gateway, w.App = SplitGate(b.Claim.Gate)
	return w, nil
}

// ReadTrouble reads why a backlog waits. Gateway and App are those of the last failure.
func ReadTrouble(stored module.Trouble) (w Waiting) {
	t := content.ReadTrouble(stored)
	w = Waiting{Attempts: t.Attempts, Status: t.Status, Class: string(t.Class)}
	w.Gateway, w.App = SplitGate(t.Gate)
	if t.Since > 0 {
		w.Since, w.Last = time.UnixMilli(t.Since), time.UnixMilli(t.Last)
	}
	return w
}

// SplitGate returns the gateway and the app_id of a gate of the queue.
func SplitGate(gate string) (gateway, app string) {
	gateway, app, _ = strings.Cut(gate, " ")
	return gateway, app
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
