package content

import (
	"encoding/json"
	"strconv"

	"github.com/pushfx/pushfx/module/strictjson"
)

// storedEvent is the stored form of an event, with what its notifications need.
type storedEvent struct {
	ID         string          `json:"e"`
	Room       string          `json:"r"`
	Kind       string          `json:"k"`
	Sender     string          `json:"s"`
	Member     string          `json:"m"`
	SenderName string          `json:"sn"`
	RoomName   string          `json:"rn"`
	RoomAlias  string          `json:"ra"`
	Position   int64           `json:"p"`
	Thread     string          `json:"h"`
	IsCall     bool            `json:"i"`
	IDOnly     bool            `json:"o"`
	Content    json.RawMessage `json:"c"`
}

// Text returns the stored form. Above the limits, it leaves out the content, then also the
// names, as [Event.Notification] does.
func (ev *Event) Text(l Limits) string {
	most := ev.most
	if l.Content != FullContent || len(ev.content) > l.MaxNotificationBytes {
		most = min(most, withNames)
	}
	for ; most > idOnly; most-- {
		if text := ev.text(most); len(text) <= l.MaxNotificationBytes {
			return text
		}
	}
	return ev.text(idOnly)
}

func (ev *Event) text(most detail) string {
	dst := appendKnown(appendKnown([]byte{'{'}, "e", ev.ID), "r", ev.Room)
	if ev.Position > 0 {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "p"), ev.Position, 10)
	}
	dst = appendKnown(dst, "h", ev.Thread)
	if ev.isCall {
		dst = append(strictjson.AppendMember(dst, "i"), "true"...)
	}
	if most == idOnly {
		return string(append(strictjson.AppendMember(dst, "o"), "true}"...))
	}
	dst = appendKnown(appendKnown(appendKnown(dst, "k", ev.kind), "s", ev.Sender), "m", ev.member)
	dst = appendKnown(appendKnown(appendKnown(dst, "sn", ev.senderName), "rn", ev.roomName), "ra", ev.roomAlias)
	if most >= withContent && ev.content != "" {
		dst = append(strictjson.AppendMember(dst, "c"), ev.content...)
	}
	return string(append(dst, '}'))
}

// ReadText is the inverse of [Event.Text].
func ReadText(text string) (*Event, error) {
	var s storedEvent
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, err
	}
	ev := &Event{
		ID: s.ID, Room: s.Room, Sender: s.Sender, kind: s.Kind, member: s.Member, senderName: s.SenderName, roomName: s.RoomName,
		roomAlias: s.RoomAlias, Position: s.Position, Thread: s.Thread, content: string(s.Content), isCall: s.IsCall, most: withContent,
		members: map[variant]string{},
	}
	if s.IDOnly {
		ev.most = idOnly
	}
	return ev, nil
}
