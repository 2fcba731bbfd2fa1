// Package pusher has pushers as values: their JSON, validation, and a user's list. It
// does no I/O, and uses neither a clock nor randomness.
package pusher

import (
	"slices"
	"strconv"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Kind is how a pusher delivers.
type Kind string

// The kinds that can be set (Matrix specification, "POST /pushers/set").
const (
	HTTP  Kind = "http"
	Email Kind = "email"
)

// Key identifies a pusher of a user. The pushkey is a credential: keep it out of logs,
// metrics and errors.
type Key struct {
	AppID   string
	Pushkey string
}

// IsAddress reports whether the pushkey of a kind is an address of the user, which the host confirms,
// which several users may have, and which is not a device's.
func (k Kind) IsAddress() bool { return k == Email }

// Canonical returns the key as it is stored: with the [CanonicalAddress] of a pusher of kind email.
func (k Key) Canonical() Key {
	if k.AppID == EmailAppID {
		k.Pushkey = CanonicalAddress(k.Pushkey)
	}
	return k
}

// Member is a member of a JSON object, kept without interpretation.
type Member = strictjson.Member

// Pusher is a way to reach a user. Data and Extra keep the client's JSON, with unknown
// members and all digits of numbers.
type Pusher struct {
	Key
	Kind              Kind
	AppDisplayName    string
	DeviceDisplayName string
	Lang              string
	Data              string   // JSON object
	Extra             []Member // all other submitted members, including profile_tag

	Device  string // the device that set the pusher; empty if the host names none
	Created int64  // place in the order of creation, assigned by [List.Set]
	Claim   int64  // number of the set, see [Entry]; 0 without one

	// SetAt is the time of the last set request, in microseconds since 1970. It grows
	// even if the request changes nothing: a push gateway's earlier rejection must not
	// remove a pusher that was set afterwards. Clients do not see it.
	SetAt int64

	// Activated says that the app has returned the token that was pushed to it. It is false for a
	// kind that does not need it ([Kind.NeedsAck]), and stays while the push subscription is the same.
	Activated bool
}

// IsInactive reports whether the pusher gets nothing but the token that activates it.
func (p Pusher) IsInactive() bool { return p.Kind.NeedsAck() && !p.Activated }

// Equal reports whether all fields are equal. It compares JSON as text.
func (p Pusher) Equal(other Pusher) bool {
	return p.Key == other.Key && p.Kind == other.Kind && p.AppDisplayName == other.AppDisplayName &&
		p.DeviceDisplayName == other.DeviceDisplayName && p.Lang == other.Lang && p.Data == other.Data &&
		slices.Equal(p.Extra, other.Extra) && p.Device == other.Device && p.Created == other.Created &&
		p.Claim == other.Claim && p.SetAt == other.SetAt && p.Activated == other.Activated
}

// Enabled reports whether the pusher gets notifications (MSC3881). It is false if
// "enabled" is false, or if "enabled" is absent and "org.matrix.msc3881.enabled" is
// false.
func (p Pusher) Enabled() bool {
	for _, name := range enabledNames() {
		for _, m := range p.Extra {
			if m.Name == name {
				return m.Value != "false"
			}
		}
	}
	return true
}

// DiffersOnlyInEnabled reports whether the pushers differ, but only in being enabled.
// It compares JSON values, and ignores the device.
func (p Pusher) DiffersOnlyInEnabled(stored Pusher) bool {
	enabled := func(m Member) bool { return slices.Contains(enabledNames(), m.Name) }
	others := func(m Member) bool { return !enabled(m) && m.Name != deviceNameMSC3881 }
	return p.Key == stored.Key && p.Kind == stored.Kind && p.Lang == stored.Lang &&
		p.AppDisplayName == stored.AppDisplayName && p.DeviceDisplayName == stored.DeviceDisplayName &&
		!sameMembers(p.Extra, stored.Extra, enabled) && sameMembers(p.Extra, stored.Extra, others) &&
		strictjson.Equal(p.Data, stored.Data)
}

func sameMembers(a, b []Member, counts func(Member) bool) bool {
	left := map[string]string{}
	for _, m := range a {
		if counts(m) {
			left[m.Name] = m.Value
		}
	}
	for _, m := range b {
		value, found := left[m.Name]
		if counts(m) && (!found || !strictjson.Equal(value, m.Value)) {
			return false
		}
		delete(left, m.Name)
	}
	return len(left) == 0
}

// WithMSC3881 returns the form of MSC3881 for clients: Extra has the enabled state and
// the device, if any.
func (p Pusher) WithMSC3881() Pusher {
	enabled := enabledNames()[1]
	p.Extra = slices.DeleteFunc(slices.Clone(p.Extra), func(m Member) bool { return m.Name == deviceNameMSC3881 })
	if !slices.ContainsFunc(p.Extra, func(m Member) bool { return m.Name == enabled }) {
		p.Extra = append(p.Extra, Member{Name: enabled, Value: strconv.FormatBool(p.Enabled())})
	}
	if p.Device != "" {
		p.Extra = append(p.Extra, Member{Name: deviceNameMSC3881, Value: string(strictjson.AppendString(nil, p.Device))})
	}
	return p
}

// enabledNames returns the names of the enabled state; if both are present, the first
// name counts.
func enabledNames() []string { return []string{"enabled", "org.matrix.msc3881.enabled"} }

// Names in the stored form only.
const (
	createdName = "created"
	deviceName  = "device_id"
	claimName   = "claim"
	numberName  = "number" // within the claim
	setAtName   = "set_at" // within the claim
)

// activatedName is also within the claim. Clients see it at the top.
const activatedName = "activated"

const deviceNameMSC3881 = "org.matrix.msc3881.device_id"

// AppendJSON appends the form for clients.
func (p Pusher) AppendJSON(dst []byte) []byte {
	dst = p.appendMembers(dst)
	if p.Kind.NeedsAck() {
		dst = strconv.AppendBool(strictjson.AppendMember(dst, activatedName), p.Activated)
	}
	return append(dst, '}')
}

// AppendStored appends the form that [ReadStored] reads: the form for clients with
// Created, Device, Claim, SetAt and Activated.
func (p Pusher) AppendStored(dst []byte) []byte {
	dst = p.appendMembers(dst)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, createdName), p.Created, 10)
	dst = strictjson.AppendString(strictjson.AppendMember(dst, deviceName), p.Device)
	dst = p.appendClaim(strictjson.AppendMember(dst, claimName))
	return append(dst, '}')
}

// appendClaim appends Claim, SetAt and Activated as one object, so that the stored form reserves
// only one name.
func (p Pusher) appendClaim(dst []byte) []byte {
	dst = strconv.AppendInt(strictjson.AppendMember(append(dst, '{'), numberName), p.Claim, 10)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, setAtName), p.SetAt, 10)
	if p.Activated {
		dst = append(strictjson.AppendMember(dst, activatedName), "true"...)
	}
	return append(dst, '}')
}

func (p *Pusher) readClaim(r *strictjson.Reader) error {
	return r.Object(func(name string) (err error) {
		switch name {
		case numberName:
			p.Claim, err = r.Integer()
		case setAtName:
			p.SetAt, err = r.Integer()
		case activatedName:
			p.Activated, err = r.Bool()
		default:
			err = r.Skip()
		}
		return err
	}, numberName, setAtName)
}

// appendMembers appends the form for clients without the closing brace.
func (p Pusher) appendMembers(dst []byte) []byte {
	dst = append(dst, '{')
	for _, m := range []struct{ name, value string }{
		{"pushkey", p.Pushkey},
		{"kind", string(p.Kind)},
		{"app_id", p.AppID},
		{"app_display_name", p.AppDisplayName},
		{"device_display_name", p.DeviceDisplayName},
		{"lang", p.Lang},
	} {
		dst = strictjson.AppendString(strictjson.AppendMember(dst, m.name), m.value)
	}
	dst = append(strictjson.AppendMember(dst, "data"), p.Data...)
	return strictjson.AppendMembers(dst, p.Extra)
}

// ReadStored reads the form of [Pusher.AppendStored]. Errors are faults.
func ReadStored(text string) (Pusher, error) {
	var p Pusher
	r := strictjson.NewReader(text)
	err := r.Object(func(name string) (err error) {
		switch name {
		case "kind":
			var kind string
			kind, err = r.String()
			p.Kind = Kind(kind)
		case createdName:
			p.Created, err = r.Integer()
		case deviceName:
			p.Device, err = r.String()
		case claimName:
			err = p.readClaim(r)
		default:
			err = p.readMember(r, name)
		}
		return err
	}, append([]string{"kind", createdName, deviceName, claimName}, append(keyNames(), detailNames()...)...)...)
	if err != nil {
		return Pusher{}, err
	}
	return p, nil
}

func keyNames() []string { return []string{"app_id", "pushkey"} }

// detailNames returns the names that are required unless the change deletes a pusher.
func detailNames() []string {
	return []string{"app_display_name", "device_display_name", "lang", "data"}
}

func (p *Pusher) readMember(r *strictjson.Reader, name string) (err error) {
	switch name {
	case "app_id":
		p.AppID, err = r.String()
	case "pushkey":
		p.Pushkey, err = r.String()
	case "app_display_name":
		p.AppDisplayName, err = r.String()
	case "device_display_name":
		p.DeviceDisplayName, err = r.String()
	case "lang":
		p.Lang, err = r.String()
	case "data":
		if !r.IsObject() {
			return r.Mismatch("an object")
		}
		p.Data, err = r.Value()
	case "profile_tag": // optional; null counts as absent
		if null, err := r.Null(); null {
			return err
		}
		if !r.IsString() {
			return r.Mismatch("a string or null")
		}
		p.Extra, err = r.Keep(p.Extra, name)
	default:
		p.Extra, err = r.Keep(p.Extra, name)
	}
	return err
}
