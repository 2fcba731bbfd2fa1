package delivery

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/url"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// pusherID names a pusher without telling its pushkey: a digest of the user and
// the key, in base64 for URLs. It is the name under which the queue keeps a
// pusher in trouble.
type pusherID string

const pusherIDBytes = 16

// PusherID returns the name under which a [module.DeliveryQueue] keeps what is
// held for a pusher. It tells nothing of the pushkey, and may be logged.
func PusherID(user mxid.UserID, key pusher.Key) string {
	sum := sha256.Sum256([]byte(string(user) + "\x00" + key.Field()))
	return base64.RawURLEncoding.EncodeToString(sum[:pusherIDBytes])
}

// short is enough of a digest to tell pushers of one user from each other.
func (id pusherID) short() uint64 {
	var sum [pusherIDBytes]byte
	if n, _ := base64.RawURLEncoding.Decode(sum[:], []byte(id)); n < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(sum[:])
}

// device is a pusher as it is sent to: what was read of it last. It does not
// change.
type device struct {
	id       pusherID
	key      pusher.Key
	name     string // of the user's device, empty if the host has told none
	setAt    int64  // its generation
	url      string
	gateway  string // scheme, host and port
	data     string // JSON object without url
	slimOnly bool   // format is event_id_only
	noCounts bool   // the app counts itself (MSC4076)
}

// readDevice returns how a pusher is sent to; ok is false for one that is not:
// of another kind than http, disabled, or without a URL that can be read.
func readDevice(user mxid.UserID, p pusher.Pusher) (d device, ok bool) {
	if p.Kind != pusher.HTTP || !p.Enabled() {
		return device{}, false
	}
	d = device{id: pusherID(PusherID(user, p.Key)), key: p.Key, name: p.Device, setAt: p.SetAt}
	d.readData(p.Data)
	for _, m := range p.Extra {
		d.noCounts = d.noCounts || isCountsOff(m.Name) && m.Value == "true"
	}
	d.gateway, ok = GatewayName(d.url)
	return d, ok
}

// GatewayName returns the name of the push gateway of a pusher's URL, under which
// hosts share what they know of it: scheme, host and port, in lower case and always
// with a port. Ok is false for a URL that cannot be read.
func GatewayName(of string) (name string, ok bool) {
	u, err := url.Parse(of)
	if err != nil || u.Host == "" {
		return "", false
	}
	port := u.Port()
	if port == "" && u.Scheme == "http" {
		port = "80"
	} else if port == "" {
		port = "443"
	}
	return strings.ToLower(u.Scheme + "://" + u.Hostname() + ":" + port), true
}

// isCountsOff tells the names of "disable_badge_count" (MSC4076). The proposal
// has it beside data, homeservers and clients within.
func isCountsOff(name string) bool {
	return name == "disable_badge_count" || name == "org.matrix.msc4076.disable_badge_count"
}

func (d *device) readData(data string) {
	rest := []byte{'{'}
	w := strictjson.Walk(data)
	if w.Next() == '{' {
		for name := range w.Object() {
			value := w.Skip()
			v := strictjson.Walk(value)
			switch {
			case name == "url":
				d.url = v.String()
				continue
			case name == "format":
				d.slimOnly = v.Next() == '"' && v.String() == "event_id_only"
			case isCountsOff(name):
				d.noCounts = d.noCounts || value == "true"
			}
			rest = append(strictjson.AppendMember(rest, name), value...)
		}
	}
	d.data = string(append(rest, '}'))
}

// pushkeySeconds is when the pusher was set last, 0 if that is not known.
func (d *device) pushkeySeconds() int64 { return d.setAt / int64(time.Second/time.Microsecond) }
