package content

import (
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// detail is how much of an event a body has.
type detail int

const (
	idOnly      detail = iota // "event_id_only"
	withNames                 // all but the content
	withContent               // all
)

// variant distinguishes the bodies of one event.
type variant struct {
	most     detail
	isTarget bool
	roomName string
	high     bool
}

// To is the recipient of a notification.
type To struct {
	User     mxid.UserID
	RoomName string // if empty, the event's is used
	Outcome  Outcome
	Target   *Target
}

// textEnd separates the tweaks from the other members in a stored text. It does not occur
// in JSON.
const textEnd = "\x00"

// countsBytes is reserved for counts, which [Body] adds.
const countsBytes = 64

// Notification returns the stored notification for a pusher, without counts and device.
// Above the limits, it leaves out the content, then the names. With only the ids left, it
// has no text. It is not safe for concurrent use.
func (ev *Event) Notification(to To, m Meta, l Limits) module.Notification {
	n := module.Notification{Priority: module.LowPriority, Room: RoomDigest(ev.Room), Meta: m.Text()}
	if to.Outcome.High {
		n.Priority = module.HighPriority
	}
	v := variant{most: withContent, isTarget: ev.member == string(to.User), roomName: to.RoomName, high: to.Outcome.High}
	switch {
	case to.Target.idOnly || l.Content == NoNames:
		v.most = idOnly
	case l.Content == NamesOnly || len(ev.content) > l.MaxNotificationBytes:
		v.most = withNames
	}
	v.most = min(v.most, ev.most)
	beside := countsBytes + len(to.Outcome.Tweaks) + len(to.Target.append(nil, ""))
	for ; v.most > idOnly; v.most-- {
		if members := ev.body(v); beside+len(members)+len(bodyStart+bodyEnd) <= l.MaxNotificationBytes {
			n.Text = to.Outcome.Tweaks + textEnd + members
			break
		}
	}
	return n
}

// body caches the members of a notification, since many recipients share them.
func (ev *Event) body(v variant) string {
	members, found := ev.members[v]
	if !found {
		members = string(ev.append(nil, v))
		ev.members[v] = members
	}
	return members
}

func (ev *Event) append(dst []byte, v variant) []byte {
	dst = appendIDs(dst, ev.ID, ev.Room)
	dst = appendString(dst, "type", ev.kind)
	dst = appendString(dst, "sender", ev.Sender)
	dst = appendKnown(dst, "sender_display_name", ev.senderName)
	if v.roomName != "" {
		dst = appendString(dst, "room_name", v.roomName)
	} else {
		dst = appendKnown(dst, "room_name", ev.roomName)
	}
	dst = appendKnown(dst, "room_alias", ev.roomAlias)
	if ev.member != "" {
		dst = strconv.AppendBool(strictjson.AppendMember(dst, "user_is_target"), v.isTarget)
	}
	dst = appendPriority(dst, v.high)
	if v.most == withContent && ev.content != "" {
		if ev.kind == "m.room.member" {
			dst = appendKnown(dst, "membership", membershipOf(ev.content))
		}
		dst = append(strictjson.AppendMember(dst, "content"), ev.content...)
	}
	return dst
}

const (
	bodyStart = `{"notification":{`
	bodyEnd   = `]}}`
)

// Body returns the body of a request (Matrix specification, Push Gateway API,
// "POST /_matrix/push/v1/notify"). It has only the ids if the notification has no text,
// if the pusher's format is event_id_only, or if a change of the pusher made the body too
// large.
func Body(n module.Notification, m Meta, d *Target, counts *module.Counts, l Limits) []byte {
	tweaks, members, isWhole := strings.Cut(n.Text, textEnd)
	body := appendBody(n, m, d, counts, tweaks, members)
	if isWhole && len(body) > l.MaxNotificationBytes || d.idOnly {
		body = appendBody(n, m, d, counts, "", "")
	}
	return body
}

func appendBody(n module.Notification, m Meta, d *Target, counts *module.Counts, tweaks, members string) []byte {
	dst := make([]byte, 0, 512+len(d.data)+len(n.Text))
	dst = append(dst, bodyStart...)
	switch {
	case members != "":
		dst = append(dst, members...)
	case m.Event != "":
		dst = appendPriority(appendIDs(dst, m.Event, m.Room), n.Priority == module.HighPriority)
	}
	if counts != nil && !d.NoCounts {
		dst = appendCounts(dst, *counts)
	}
	dst = append(strictjson.AppendMember(dst, "devices"), '[')
	return append(d.append(dst, tweaks), bodyEnd...)
}

func appendIDs(dst []byte, event, room string) []byte {
	return appendString(appendString(dst, "event_id", event), "room_id", room)
}

func appendPriority(dst []byte, high bool) []byte {
	if high {
		return appendString(dst, "prio", "high")
	}
	return appendString(dst, "prio", "low")
}

// membershipOf returns a member event's membership. The specification does not have it,
// but sygnal needs it to show invites on iOS.
func membershipOf(content string) string { return readText(memberOf(content, "membership")) }

// appendCounts also sends an unread count of 0, against the specification: it clears
// badges, and all homeservers send it.
func appendCounts(dst []byte, counts module.Counts) []byte {
	dst = append(strictjson.AppendMember(dst, "counts"), '{')
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "unread"), int64(counts.Unread), 10)
	if counts.MissedCalls > 0 {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "missed_calls"), int64(counts.MissedCalls), 10)
	}
	return append(dst, '}')
}

func (d *Target) append(dst []byte, tweaks string) []byte {
	dst = appendString(append(dst, '{'), "app_id", d.Key.AppID)
	dst = appendString(dst, "pushkey", d.Key.Pushkey)
	if ts := d.pushkeySeconds(); ts > 0 {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "pushkey_ts"), ts, 10)
	}
	dst = append(strictjson.AppendMember(dst, "data"), d.data...)
	if tweaks != "" {
		dst = append(strictjson.AppendMember(dst, "tweaks"), tweaks...)
	}
	return append(dst, '}')
}

func appendString(dst []byte, name, value string) []byte {
	return strictjson.AppendString(strictjson.AppendMember(dst, name), value)
}

func appendKnown(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return appendString(dst, name, value)
}
