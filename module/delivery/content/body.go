package content

import (
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// variant distinguishes the stored texts of one event.
type variant struct {
	isTarget bool
	roomName string
	outcome  Outcome
}

// To is the recipient of a notification.
type To struct {
	User     mxid.UserID
	RoomName string // if empty, the event's is used
	Outcome  Outcome
	IDOnly   bool // no pusher of the user gets more than the ids; see [Target.IsIDOnly]
}

// textEnd separates the tweaks, the members without the content, and the content in a
// stored text. It does not occur in JSON.
const textEnd = "\x00"

// Notification returns the stored notification for a user, without its ID and Meta. Its
// text fits every pusher of the user. Above the limits, it leaves out the content, then the
// names. With only the ids left, it has no text.
func (ev *Event) Notification(to To, l Limits) module.Notification {
	n := module.Notification{Priority: module.LowPriority, Room: RoomDigest(ev.Room)}
	if to.Outcome.High {
		n.Priority = module.HighPriority
	}
	if !to.IDOnly && l.Content != NoNames {
		n.Text = ev.text(variant{isTarget: ev.member == string(to.User), roomName: to.RoomName, outcome: to.Outcome}, l)
	}
	return n
}

// text caches the texts, since many recipients share them.
func (ev *Event) text(v variant, l Limits) string {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	text, found := ev.texts[v]
	if found {
		return text
	}
	text = v.outcome.Tweaks + textEnd + string(ev.append(nil, v))
	if l.Content == FullContent && ev.content != "" && len(text)+len(ev.content) <= l.MaxNotificationBytes {
		var dst []byte
		if ev.kind == "m.room.member" {
			dst = appendKnown(dst, "membership", membershipOf(ev.content))
		}
		text += textEnd + string(append(strictjson.AppendMember(dst, "content"), ev.content...))
	}
	if len(text) > l.MaxNotificationBytes {
		text = ""
	}
	ev.texts[v] = text
	return text
}

// append appends all members but the content.
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
	return appendPriority(dst, v.outcome.High)
}

const (
	bodyStart = `{"notification":{`
	bodyEnd   = `]}}`
)

// Body returns the body of a request (Matrix specification, Push Gateway API,
// "POST /_matrix/push/v1/notify"). Above the limit, it leaves out the content, then all but
// the ids, and it has only the ids if the notification has no text, or the pusher's format
// is event_id_only. Counts alone have low priority: without "prio", they would wake phones.
func Body(n module.Notification, m Meta, d *Target, counts *module.Counts, l Limits) []byte {
	if d.idOnly {
		n.Text = ""
	}
	tweaks, members, _ := strings.Cut(n.Text, textEnd)
	members, content, hasContent := strings.Cut(members, textEnd)
	if members != "" {
		if body := appendBody(n, m, d, counts, tweaks, members, content); len(body) <= l.MaxNotificationBytes {
			return body
		}
		if hasContent {
			if body := appendBody(n, m, d, counts, tweaks, members, ""); len(body) <= l.MaxNotificationBytes {
				return body
			}
		}
	}
	return appendBody(n, m, d, counts, "", "", "")
}

func appendBody(n module.Notification, m Meta, d *Target, counts *module.Counts, tweaks, members, content string) []byte {
	dst := make([]byte, 0, 512+len(d.data)+len(n.Text))
	dst = append(dst, bodyStart...)
	switch {
	case members != "":
		dst = append(dst, members...)
		if content != "" {
			dst = append(append(dst, ','), content...)
		}
	case m.Event != "":
		dst = appendPriority(appendIDs(dst, m.Event, m.Room), n.Priority == module.HighPriority)
	default:
		dst = appendPriority(dst, false)
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
