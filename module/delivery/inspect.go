package delivery

import (
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/kinds"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Waiting describes what a pusher has to send, for operators. It has no pushkey and no
// content. Times are by the clock of the queue.
type Waiting struct {
	User          mxid.UserID
	Pusher        string // see [PusherID]
	Notifications int
	Unreadable    int       // of Notifications; hosts will drop them
	Oldest        time.Time // when Notify got the first of them
	Claimed       bool      // whether a host has claimed the pusher, until Due
	Due           time.Time // time of the next attempt

	Attempts     int       // failures in a row
	Since        time.Time // of the first failure; zero for none
	Last         time.Time // of the last failure; zero for none
	Gateway, App string    // of the last failure; see [GatewayName]; the app_id
	Status       int       // of the last answer, 0 for none
	Class        string    // why there was no answer, for example "dns"; "status" otherwise
}

// ReadLog describes what the pushers of a user have to send.
func ReadLog(user mxid.UserID, log module.Log) (all []Waiting) {
	for _, p := range log.Pushers {
		w := ReadTrouble(p.Trouble)
		w.User, w.Pusher, w.Claimed, w.Due = user, p.Pusher, p.Claimed, p.Due
		w.Notifications = len(p.Waiting)
		for _, n := range notificationsOf(log, &p) {
			m, err := content.ReadMeta(n.Meta)
			switch {
			case err != nil:
				w.Unreadable++
			case w.Oldest.IsZero():
				w.Oldest = time.UnixMilli(m.Added)
			}
		}
		all = append(all, w)
	}
	return all
}

// ReadTrouble reads why a pusher waits.
func ReadTrouble(stored module.Trouble) (w Waiting) {
	t := readTrouble(stored)
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

// LabelOf returns the label of a [GatewayName] in metrics: "other" for kind http, otherwise its scheme, such as "mail".
func LabelOf(gateway string) string { return channel.LabelOf(gateway) }

// Labels are the labels of the module's kinds of pushers.
func Labels() []string { return channel.Labels() }

// GatewayOf returns the [GatewayName] of a pusher. Ok is false for a pusher without
// notifications: it is disabled, or its URL or address is invalid. All pushers of kind email have
// the gateway "mail://relay", and those of an unknown kind the kind and "://".
func GatewayOf(user mxid.UserID, p pusher.Pusher) (name string, ok bool) {
	t, ok := kinds.Names().Read(user, p)
	if !ok {
		return "", false
	}
	return t.Gateway, true
}

// GatewayName returns scheme, host and port of a URL in canonical form.
func GatewayName(of string) (name string, ok bool) { return channel.GatewayName(of) }
