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
			dst = appendKnown(dst, "membership", MembershipOf(ev.content))
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
	dst = AppendIDs(dst, ev.ID, ev.Room)
	dst = AppendString(dst, "type", ev.kind)
	dst = AppendString(dst, "sender", ev.Sender)
	dst = appendKnown(dst, "sender_display_name", ev.senderName)
	if v.roomName != "" {
		dst = AppendString(dst, "room_name", v.roomName)
	} else {
		dst = appendKnown(dst, "room_name", ev.roomName)
	}
	dst = appendKnown(dst, "room_alias", ev.roomAlias)
	if ev.member != "" {
		dst = strconv.AppendBool(strictjson.AppendMember(dst, "user_is_target"), v.isTarget)
	}
	return AppendPriority(dst, v.outcome.High)
}

// Split returns the parts of a stored text: the tweaks, the members but the content, and the
// content. All are empty for a text without more than the ids.
func Split(text string) (tweaks, members, content string) {
	tweaks, members, _ = strings.Cut(text, textEnd)
	members, content, _ = strings.Cut(members, textEnd)
	return tweaks, members, content
}

// AppendIDs appends the ids of an event to an object.
func AppendIDs(dst []byte, event, room string) []byte {
	return AppendString(AppendString(dst, "event_id", event), "room_id", room)
}

// AppendPriority appends "prio" to an object.
func AppendPriority(dst []byte, high bool) []byte {
	if high {
		return AppendString(dst, "prio", "high")
	}
	return AppendString(dst, "prio", "low")
}

// MembershipOf returns a member event's membership. The specification does not have it,
// but sygnal needs it to show invites on iOS.
func MembershipOf(content string) string { return ReadText(MemberOf(content, "membership")) }

// AppendString appends a member to an object.
func AppendString(dst []byte, name, value string) []byte {
	return strictjson.AppendString(strictjson.AppendMember(dst, name), value)
}

func appendKnown(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return AppendString(dst, name, value)
}
