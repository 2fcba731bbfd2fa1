package channel

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/idna"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// PusherID returns a digest that identifies a pusher. It is also the pusher's name in the
// queue, and may be logged.
func PusherID(user mxid.UserID, key pusher.Key) string {
	return content.Digest(string(user), key.Field())
}

// Target is a pusher that gets notifications. It is immutable.
type Target struct {
	User     mxid.UserID
	ID       string // see [PusherID]
	Key      pusher.Key
	Kind     pusher.Kind
	Device   string // the user's, empty if unknown
	SetAt    int64  // its generation
	Gateway  string // see [GatewayName]
	NoCounts bool   // the app counts itself (MSC4076)
	IsIDOnly bool   // it gets the ids only
	Inactive bool   // it gets nothing but its activation; see [pusher.Pusher.IsInactive]

	// How to send to it: one of them. Both are nil if this host has no channel for its kind.
	Poster    Poster
	Collector Collector
}

// maxGate bounds the name of a gate. Hosts of the Internet have shorter names.
const maxGate = 900

// Gate names the gateway and the app, which fail together.
func (t *Target) Gate() string {
	name := t.Gateway + " " + t.Key.AppID
	if len(name) > maxGate {
		return "long: " + content.Digest(name)
	}
	return name
}

// IsSent reports whether this host sends to the pusher.
func (t *Target) IsSent() bool { return t.Poster != nil || t.Collector != nil }

// Sent returns the stored form of the counts that a pusher got last. The form changes when
// the pusher is set again, so that the pusher gets its counts again.
func (t *Target) Sent(c module.Counts) string { return fmt.Sprint(t.SetAt, c.Unread, c.MissedCalls) }

// Set has the channels of a host.
type Set struct {
	Channels map[pusher.Kind]Channel
	NoCounts []string // app_ids that are sent no counts
}

// Read returns false for a pusher without notifications: it is disabled, or its data is invalid. A
// pusher of an unknown kind gets notifications, since another host may know the kind: they wait at
// a gate of their own.
func (s Set) Read(user mxid.UserID, p pusher.Pusher) (t *Target, ok bool) {
	if !p.Enabled() {
		return nil, false
	}
	t = &Target{
		User: user, ID: PusherID(user, p.Key), Key: p.Key, Kind: p.Kind, Device: p.Device, SetAt: p.SetAt, NoCounts: slices.Contains(s.NoCounts, p.Key.AppID),
		Inactive: p.IsInactive(),
	}
	for _, m := range p.Extra {
		t.NoCounts = t.NoCounts || IsCountsOff(m.Name) && m.Value == "true"
	}
	c := s.Channels[p.Kind]
	if c == nil {
		t.Gateway = schemeOf(p.Kind) + "://"
		return t, true
	}
	return t, c.Read(p, t)
}

// Sends reports whether this host sends what waits at a gate.
func (s Set) Sends(gate string) bool {
	c := s.Channels[KindOf(gate)]
	return c != nil && c.Sends()
}

// Kinds returns the kinds of pushers that this host sends to.
func (s Set) Kinds() (kinds []pusher.Kind) {
	for _, kind := range slices.Sorted(maps.Keys(s.Channels)) {
		if s.Channels[kind].Sends() {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Delay is how long a notification for a pusher of a kind waits before it is sent. A host that does
// not send the kind leaves that to those that do.
func (s Set) Delay(kind pusher.Kind) time.Duration {
	if c := s.Channels[kind]; c != nil && c.Sends() {
		return c.Delay()
	}
	return 0
}

// Waits reports whether what waits at a gate does so by itself, or for another host.
func (s Set) Waits(gate string) bool {
	c := s.Channels[KindOf(gate)]
	return c == nil || !c.Sends() || c.Delay() > 0
}

// IsCountsOff recognizes "disable_badge_count" (MSC4076). The proposal has it next to
// data, but homeservers and clients have it inside data.
func IsCountsOff(name string) bool {
	return name == "disable_badge_count" || name == "org.matrix.msc4076.disable_badge_count"
}

// MailGateway is the gateway of all mails: one server takes them for all domains, so they share its
// limits, its outages and the rejection limit.
const (
	mailScheme  = "mail"
	MailGateway = mailScheme + "://relay"
)

// OwnGateway returns the gateway of all pushers of a kind of a host's own.
func OwnGateway(kind pusher.Kind) string { return schemeOf(kind) + "://" }

// schemeOf returns the scheme of gateways of a kind other than http.
func schemeOf(kind pusher.Kind) string {
	if !IsPlain(kind) {
		return "kind-" + strings.ToLower(content.Digest(string(kind)))
	}
	return string(kind)
}

// IsPlain reports whether the name of a kind has only small letters, digits, and . _ -.
func IsPlain(kind pusher.Kind) bool {
	return kind != "" && strings.Trim(string(kind), "abcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

// KindOf returns the kind of the pushers at a gate.
func KindOf(gate string) pusher.Kind {
	switch scheme, _, isURL := strings.Cut(gate, "://"); {
	case !isURL, isHTTP(scheme): // [Target.Gate] shortens long names of hosts
		return pusher.HTTP
	case scheme == mailScheme:
		return pusher.Email
	default:
		return pusher.Kind(scheme)
	}
}

func isHTTP(scheme string) bool { return scheme == "http" || scheme == "https" }

// IsNamedByUsers reports whether users name a gateway or gate, by a URL. All others are the host's own.
func IsNamedByUsers(gate string) bool {
	kind := KindOf(gate)
	return kind == pusher.HTTP || kind == pusher.WebPush
}

// Labels are the labels of the module's kinds; see [LabelOf].
func Labels() []string { return []string{otherLabel, mailScheme, string(pusher.WebPush)} }

const otherLabel = "other"

// LabelOf returns the label of a gateway in metrics: "other" for kind http, otherwise its scheme,
// such as "mail".
func LabelOf(gateway string) string {
	if KindOf(gateway) == pusher.HTTP {
		return otherLabel
	}
	scheme, _, _ := strings.Cut(gateway, "://")
	return scheme
}

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
	switch {
	case scheme == "", host == "" && (isHTTP(scheme) || scheme == mailScheme):
		return "", false
	case !isHTTP(scheme) && port == "":
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
