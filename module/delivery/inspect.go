package delivery

import (
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Waiting tells operators of a backlog. It has no pushkey, and nothing of what is to
// be sent. Times are by the clock of the queue.
type Waiting struct {
	User          mxid.UserID
	Pusher        string // see [PusherID]
	Gateway, App  string // the gateway as [GatewayName] has it, and the app_id
	Notifications int
	Oldest        time.Time // when the first of them was handed over
	Claimed       bool      // by a host, until Due
	Due           time.Time // when it is to be tried

	Attempts int       // failures in a row
	Since    time.Time // the first of them; zero for none
	Status   int       // of the last answer, 0 for none
	Class    string    // why there was no answer: "dns" for example; "status" for one
}

// ReadBacklog reads a backlog of a [module.DeliveryQueue], but that of a fan-out.
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

// GatewayOf returns the push gateway of a user's pusher, as metrics and tools name
// it; see [GatewayName]. Ok is false for a pusher that is not sent to: of another
// kind than http, disabled, or without a URL that can be read.
func GatewayOf(user mxid.UserID, p pusher.Pusher) (name string, ok bool) {
	d, ok := content.ReadTarget(user, p, content.Limits{})
	if !ok {
		return "", false
	}
	return d.Gateway, true
}

// GatewayName returns the name of the push gateway of a URL: scheme, host and port in
// canonical form, so that one gateway has one name. It has nothing of the path.
func GatewayName(of string) (name string, ok bool) { return content.GatewayName(of) }
