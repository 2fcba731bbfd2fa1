package pusher

import (
	"strconv"

	"github.com/pushfx/pushfx/module/strictjson"
)

// The members that a stored pusher must have, as bits.
const (
	hasKind = 1 << iota
	hasAppID
	hasPushkey
	hasAppDisplayName
	hasDeviceDisplayName
	hasLang
	hasData

	hasAll = 1<<iota - 1
)

// look is a quick way to read a stored pusher. Where it does not say ok,
// [readStored] tells why, or takes what is unusual.
func look(text string) (p Pusher, ok bool) {
	if !strictjson.Valid(text) {
		return Pusher{}, false
	}
	l := looker{Walker: strictjson.Walk(text), fits: true}
	l.expect('{')
	members := 0
	for name := range l.Object() {
		switch name {
		case "kind":
			members |= hasKind
			p.Kind = Kind(l.string())
		case "app_id":
			members |= hasAppID
			p.AppID = l.string()
		case "pushkey":
			members |= hasPushkey
			p.Pushkey = l.string()
		case "app_display_name":
			members |= hasAppDisplayName
			p.AppDisplayName = l.string()
		case "device_display_name":
			members |= hasDeviceDisplayName
			p.DeviceDisplayName = l.string()
		case "lang":
			members |= hasLang
			p.Lang = l.string()
		case "data":
			members |= hasData
			l.expect('{')
			p.Data = l.Skip()
		case createdName:
			p.Created = l.integer()
		case deviceName:
			p.Device = l.string()
		case claimName:
			p.Claim, p.SetAt = l.claim()
		case "profile_tag":
			l.expect('"')
			fallthrough
		default:
			p.Extra = append(p.Extra, Member{Name: name, Value: l.Skip()})
		}
	}
	return p, l.fits && members == hasAll
}

// looker reads values that are as the service writes them.
type looker struct {
	strictjson.Walker
	fits bool // all were
}

func (l *looker) expect(first byte) { l.fits = l.fits && l.Next() == first }

func (l *looker) string() string {
	l.expect('"')
	return l.String()
}

func (l *looker) integer() int64 {
	n, err := strconv.ParseInt(l.Skip(), 10, 64)
	l.fits = l.fits && err == nil
	return n
}

func (l *looker) claim() (c Claim, setAt int64) {
	l.expect('{')
	members := 0
	for name := range l.Object() {
		switch name {
		case "number":
			members++
			c.Number = l.integer()
		case "removes":
			members++
			c.Removes = l.integer()
		case setAtName:
			setAt = l.integer()
		default:
			l.fits = false
		}
	}
	l.fits = l.fits && members == 2
	return c, setAt
}
