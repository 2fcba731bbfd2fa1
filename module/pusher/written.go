package pusher

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// readWritten reads a stored pusher that is as the service writes it, without
// looking for errors: what is JSON, and is what [Pusher.AppendStored] writes of
// the pusher that is found in it, is that pusher. If it does not say ok,
// [readStored] reads the text, or says what is wrong.
func readWritten(text string) (p Pusher, ok bool) {
	if !strictjson.Valid(text) {
		return Pusher{}, false
	}
	w := strictjson.Walk(text)
	for name := range w.Object() {
		switch name {
		case "kind":
			p.Kind = Kind(w.String())
		case "app_id":
			p.AppID = w.String()
		case "pushkey":
			p.Pushkey = w.String()
		case "app_display_name":
			p.AppDisplayName = w.String()
		case "device_display_name":
			p.DeviceDisplayName = w.String()
		case "lang":
			p.Lang = w.String()
		case "data":
			p.Data = w.Skip()
		case createdName:
			p.Created = walkInteger(&w)
		case deviceName:
			p.Device = w.String()
		case claimName:
			p.walkClaim(&w)
		default:
			p.Extra = append(p.Extra, Member{Name: name, Value: w.Skip()})
		}
	}
	var written [1024]byte
	return p, p.hasShape() && string(p.AppendStored(written[:0])) == text
}

func (p *Pusher) walkClaim(w *strictjson.Walker) {
	for name := range w.Object() {
		switch name {
		case "number":
			p.Claim.Number = walkInteger(w)
		case "removes":
			p.Claim.Removes = walkInteger(w)
		case setAtName:
			p.SetAt = walkInteger(w)
		}
	}
}

func walkInteger(w *strictjson.Walker) int64 {
	n, _ := strconv.ParseInt(w.Skip(), 10, 64) // the text is compared afterwards: anything but this integer differs
	return n
}

// hasShape reports whether the members that are kept as they came are of the type
// that [readStored] wants.
func (p *Pusher) hasShape() bool {
	return strings.HasPrefix(p.Data, "{") && !slices.ContainsFunc(p.Extra, func(m Member) bool {
		return m.Name == "profile_tag" && m.Value[0] != '"'
	})
}
