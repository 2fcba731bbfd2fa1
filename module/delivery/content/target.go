package content

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/idna"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// PusherID returns a digest that identifies a pusher. It is also the pusher's name in the
// queue, and may be logged.
func PusherID(user mxid.UserID, key pusher.Key) string { return digest(string(user), key.Field()) }

// RoomDigest names a room without revealing the id.
func RoomDigest(room string) string { return digest(room)[:8] }

// EventID identifies an event within the log of a user.
func EventID(event string) string { return digest(event)[:8] }

// Target is a pusher that gets notifications. It is immutable.
type Target struct {
	ID       string // see [PusherID]
	Key      pusher.Key
	Kind     pusher.Kind
	Name     string // of the user's device, empty if unknown
	SetAt    int64  // its generation
	URL      string
	Gateway  string // see [GatewayName]
	NoCounts bool   // the app counts itself (MSC4076)
	IsMail   bool   // its pushkey is an address; it gets mails instead of notifications
	Lang     string
	data     string // JSON object without url
	idOnly   bool
}

// maxGate bounds the name of a gate. Hosts of the Internet have shorter names.
const maxGate = 900

// IsIDOnly reports whether the pusher gets the ids only: its format is event_id_only.
func (d *Target) IsIDOnly() bool { return d.idOnly }

// Gate names the gateway and the app, which fail together.
func (d *Target) Gate() string {
	name := d.Gateway + " " + d.Key.AppID
	if len(name) > maxGate {
		return "long: " + digest(name)
	}
	return name
}

// ReadTarget returns false for a pusher without notifications: it is disabled, or its URL or
// address is invalid. A pusher of an unknown kind gets notifications, since another host may know
// the kind: they wait at a gate of their own.
func ReadTarget(user mxid.UserID, p pusher.Pusher, l Limits) (d *Target, ok bool) {
	d = &Target{
		ID: PusherID(user, p.Key), Key: p.Key, Kind: p.Kind, Name: p.Device, SetAt: p.SetAt, NoCounts: slices.Contains(l.NoCounts, p.Key.AppID), Lang: p.Lang,
	}
	switch {
	case !p.Enabled():
		return nil, false
	case p.Kind == pusher.Email:
		d.IsMail, d.NoCounts, d.Name = true, true, "" // it is the user's, not a device's
		d.Gateway = mailGateway
		at := strings.LastIndexByte(p.Pushkey, '@')
		_, isHost := GatewayName(mailScheme + "://" + p.Pushkey[at+1:])
		return d, isHost && at > 0
	}
	d.readData(p.Data)
	for _, m := range p.Extra {
		d.NoCounts = d.NoCounts || isCountsOff(m.Name) && m.Value == "true"
	}
	if p.Kind != pusher.HTTP {
		d.Gateway = schemeOf(p.Kind) + "://"
		return d, true
	}
	d.Gateway, ok = GatewayName(d.URL)
	return d, ok && KindOf(d.Gateway) == pusher.HTTP
}

// mailGateway is the gateway of all mails: one server takes them for all domains, so they share
// its limits, its outages and the rejection limit.
const (
	mailScheme  = "mail"
	mailGateway = mailScheme + "://relay"
)

// schemeOf returns the scheme of gateways of a kind other than http.
func schemeOf(kind pusher.Kind) string {
	isOther := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-", r) }
	if strings.ContainsFunc(string(kind), isOther) {
		return "kind-" + strings.ToLower(digest(string(kind)))
	}
	return string(kind)
}

// KindOf returns the kind of the pushers at a gate.
func KindOf(gate string) pusher.Kind {
	switch scheme, _, isURL := strings.Cut(gate, "://"); {
	case !isURL, scheme == "http", scheme == "https": // [Target.Gate] shortens long names of hosts
		return pusher.HTTP
	case scheme == mailScheme:
		return pusher.Email
	default:
		return pusher.Kind(scheme)
	}
}

// IsMailGate reports whether a gate is of pushers that get mails.
func IsMailGate(gate string) bool { return KindOf(gate) == pusher.Email }

// GatewayName returns scheme, host and port of a URL in canonical form, or the name of another
// gateway: a scheme, and a host or none. Ok is false for an invalid URL.
func GatewayName(of string) (name string, ok bool) {
	u, err := url.Parse(of)
	if err != nil {
		return "", false
	}
	scheme, host, port := strings.ToLower(u.Scheme), strings.TrimRight(u.Hostname(), "."), strings.TrimLeft(u.Port(), "0")
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	switch isHTTP := scheme == "http" || scheme == "https"; {
	case scheme == "", host == "" && (isHTTP || scheme == mailScheme):
		return "", false
	case !isHTTP && port == "":
		return scheme + "://" + strings.ToLower(host), true
	case port == "" && scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return scheme + "://" + strings.ToLower(host) + ":" + port, true
}

// isCountsOff recognizes "disable_badge_count" (MSC4076). The proposal has it next to
// data, but homeservers and clients have it inside data.
func isCountsOff(name string) bool {
	return name == "disable_badge_count" || name == "org.matrix.msc4076.disable_badge_count"
}

func (d *Target) readData(data string) {
	rest := []byte{'{'}
	w := strictjson.Walk(data)
	if w.Next() == '{' {
		for name := range w.Object() {
			value := w.Skip()
			v := strictjson.Walk(value)
			switch {
			case name == "url":
				d.URL = v.String()
				continue
			case name == "format":
				d.idOnly = v.Next() == '"' && v.String() == "event_id_only"
			case isCountsOff(name):
				d.NoCounts = d.NoCounts || value == "true"
			}
			rest = append(strictjson.AppendMember(rest, name), value...)
		}
	}
	d.data = string(append(rest, '}'))
}

// Sent returns the stored form of the counts that a pusher got last. The form changes when
// the pusher is set again, so that the pusher gets its counts again.
func (d *Target) Sent(c module.Counts) string { return fmt.Sprint(d.SetAt, c.Unread, c.MissedCalls) }

// pushkeySeconds is when the pusher was last set, 0 if unknown.
func (d *Target) pushkeySeconds() int64 { return d.SetAt / int64(time.Second/time.Microsecond) }
