package delivery

import (
	"strconv"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// message is one notification for one device.
type message struct {
	user    mxid.UserID
	event   *event
	outcome outcome
	device  *device
	counts  *module.Counts // nil: not known
	slim    bool           // as little as for event_id_only
}

// detail is how much a body tells.
type detail int

const (
	idsAlone    detail = iota // "event_id_only"
	withNames                 // all but the content
	withContent               // all
)

// body returns the body of the request (Matrix specification, Push Gateway API,
// "POST /_matrix/push/v1/notify"), with one device. One that is too large leaves
// out the content, then the names.
func (m message) body(cfg *Config) []byte {
	most := withContent
	switch {
	case m.slim || m.device.slimOnly || cfg.Content == NoNames:
		most = idsAlone
	case cfg.Content == NamesOnly:
		most = withNames
	}
	if most == withContent && len(m.event.content) > cfg.MaxNotificationBytes {
		most = withNames
	}
	for ; ; most-- {
		if body := m.append(nil, most); len(body) <= cfg.MaxNotificationBytes || most == idsAlone {
			return body
		}
	}
}

func (m message) append(dst []byte, most detail) []byte {
	if dst == nil {
		dst = make([]byte, 0, 512+len(m.device.data)+len(m.event.content)*int(most)/2)
	}
	dst = append(dst, `{"notification":{`...)
	if !m.event.countsOnly {
		dst = m.appendEvent(dst, most)
	}
	if m.counts != nil && !m.device.noCounts {
		dst = appendCounts(dst, *m.counts)
	}
	dst = append(strictjson.AppendMember(dst, "devices"), '[')
	dst = m.appendDevice(dst, most)
	return append(dst, `]}}`...)
}

func (m message) appendEvent(dst []byte, most detail) []byte {
	ev := m.event
	dst = appendString(dst, "event_id", ev.id)
	dst = appendString(dst, "room_id", ev.room)
	if most >= withNames {
		dst = appendString(dst, "type", ev.kind)
		dst = appendString(dst, "sender", ev.sender)
		dst = appendKnown(dst, "sender_display_name", ev.senderName)
		dst = appendKnown(dst, "room_name", ev.roomName)
		dst = appendKnown(dst, "room_alias", ev.roomAlias)
		if ev.member != "" {
			dst = strconv.AppendBool(strictjson.AppendMember(dst, "user_is_target"), ev.member == string(m.user))
		}
	}
	prio := "low"
	if m.outcome.high {
		prio = "high"
	}
	dst = appendString(dst, "prio", prio)
	if most == withContent && ev.content != "" {
		if ev.kind == "m.room.member" {
			dst = appendKnown(dst, "membership", membershipOf(ev.content))
		}
		dst = append(strictjson.AppendMember(dst, "content"), ev.content...)
	}
	return dst
}

// membershipOf returns the membership of a member event's content. It is not in
// the specification's notification, but sygnal shows invites on iOS only with it.
func membershipOf(content string) (membership string) {
	w := strictjson.Walk(content)
	for name := range w.Object() {
		if name == "membership" && w.Next() == '"' {
			membership = w.String()
		}
	}
	return membership
}

// appendCounts appends the counts. Unread 0 is sent, though the specification
// says that it should be left out: badges are cleared by it, and all homeservers
// send it.
func appendCounts(dst []byte, counts module.Counts) []byte {
	dst = append(strictjson.AppendMember(dst, "counts"), '{')
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "unread"), int64(counts.Unread), 10)
	if counts.MissedCalls > 0 {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "missed_calls"), int64(counts.MissedCalls), 10)
	}
	return append(dst, '}')
}

func (m message) appendDevice(dst []byte, most detail) []byte {
	d := m.device
	dst = appendString(append(dst, '{'), "app_id", d.key.AppID)
	dst = appendString(dst, "pushkey", d.key.Pushkey)
	if ts := d.pushkeySeconds(); ts > 0 {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "pushkey_ts"), ts, 10)
	}
	dst = append(strictjson.AppendMember(dst, "data"), d.data...)
	if most != idsAlone && !m.event.countsOnly {
		dst = append(strictjson.AppendMember(dst, "tweaks"), m.outcome.tweaks...)
	}
	return append(dst, '}')
}

func appendString(dst []byte, name, value string) []byte {
	return strictjson.AppendString(strictjson.AppendMember(dst, name), value)
}

// appendKnown appends what may not be known.
func appendKnown(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return appendString(dst, name, value)
}
