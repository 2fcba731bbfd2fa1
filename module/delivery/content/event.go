package content

import (
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Encrypted is the type of encrypted events.
const Encrypted = "m.room.encrypted"

// Event has the common values of an event's notifications. It is safe for concurrent use.
type Event struct {
	ID, Room, Sender                string
	Position                        int64
	Thread                          string
	Lifetime                        time.Duration // how long a notification lasts after Notify
	RingsFor                        time.Duration // how long it is a call after Notify, 0 for other events
	kind                            string
	member                          string // the state_key of a member event
	senderName, roomName, roomAlias string
	content                         string // JSON, empty if there is none
	sentAt                          int64  // origin_server_ts in milliseconds, 0 if unknown

	mu    sync.Mutex
	texts map[variant]string // see [Event.Notification]
}

// Outcome is the effect of a user's rules on the notification.
type Outcome struct {
	High   bool
	Tweaks string // JSON object
}

// Outcome returns the effect of a result.
func (ev *Event) Outcome(result match.Result) Outcome {
	return Outcome{High: ev.isHigh(result), Tweaks: tweaksOf(result.Actions())}
}

var errNoIDs = fault.New(fault.InvalidParam, "An event needs event_id and room_id.")

var errNoPlace = fault.New(fault.InvalidParam, "An event's position is not negative, and its thread has at most 255 bytes.")

// maxIDBytes is the maximum length of an event id (Matrix specification, appendices,
// "Opaque identifiers").
const maxIDBytes = 255

// ReadEvent reads an event. Ok is false if it is redacted or has expired.
func ReadEvent(e module.Event, cfg Limits, now time.Time) (ev *Event, ok bool, err error) {
	if len(e.JSON) > cfg.MaxEventBytes {
		return nil, false, fault.New(fault.InvalidParam, "The event is too large.")
	}
	if !strictjson.Valid(e.JSON) {
		return nil, false, fault.Wrap(fault.InvalidParam, "The event is not a JSON object.", match.ErrNotAnEvent)
	}
	ev = &Event{
		senderName: e.SenderName, roomName: e.RoomName, roomAlias: e.RoomAlias, Lifetime: cfg.MaxAge,
		texts: map[variant]string{}, Position: e.Position, Thread: e.Thread,
	}
	if e.Position < 0 || len(e.Thread) > maxIDBytes {
		return nil, false, errNoPlace
	}
	redacted := ev.read(e.JSON)
	if ev.ID == "" || ev.Room == "" {
		return nil, false, errNoIDs
	}
	if !e.Expires.IsZero() {
		ev.Lifetime = min(ev.Lifetime, e.Expires.Sub(now))
	}
	ev.RingsFor = min(ev.Lifetime, ev.ringsFor(e.Related, cfg.CallAge, now))
	return ev, !redacted && ev.Lifetime > 0, nil
}

func (ev *Event) read(text string) (redacted bool) {
	var stateKey string
	w := strictjson.Walk(text)
	if w.Next() != '{' {
		return false
	}
	for name := range w.Object() {
		if w.Next() == '{' {
			switch name {
			case "content":
				ev.content = w.Skip()
			case "unsigned":
				redacted = MemberOf(w.Skip(), "redacted_because") != ""
			}
			continue
		}
		if w.Next() != '"' {
			if name == "origin_server_ts" {
				ev.sentAt = readMillis(w.Skip())
			}
			continue
		}
		switch name {
		case "event_id":
			ev.ID = w.String()
		case "room_id":
			ev.Room = w.String()
		case "type":
			ev.kind = w.String()
		case "sender":
			ev.Sender = w.String()
		case "state_key":
			stateKey = w.String()
		}
	}
	if ev.kind == "m.room.member" {
		ev.member = stateKey
	}
	return redacted
}

// isHigh reports whether a notification should wake the device. As in other homeservers,
// this is so for a sound, a highlight, and an encrypted event, which may need one.
func (ev *Event) isHigh(result match.Result) bool {
	return ev.kind == Encrypted || ev.RingsFor > 0 || result.Highlight() || result.Sound() != ""
}

// The bounds of the tweaks of an outcome. Users choose them, and an event may have other
// tweaks for each user.
const (
	maxTweaks = 1 << 10
	maxTweak  = maxTweaks / 4 // bytes of a single tweak, if all tweaks exceed maxTweaks
)

// tweaksOf returns the tweaks of actions as an object. The last value of a name counts; a
// highlight without a value is true (Matrix specification, "Push Rules", "Actions").
// Above maxTweaks, only a short sound and highlight are kept.
func tweaksOf(actions []pushrule.Action) string {
	var all []strictjson.Member
	for _, action := range actions {
		name, value := readTweak(string(action))
		if name == "" || value == "" {
			continue
		}
		all = slices.DeleteFunc(all, func(m strictjson.Member) bool { return m.Name == name })
		all = append(all, strictjson.Member{Name: name, Value: value})
	}
	text := strictjson.AppendMembers([]byte{'{'}, all)
	if len(text) >= maxTweaks {
		all = slices.DeleteFunc(all, func(m strictjson.Member) bool {
			return m.Name != "sound" && m.Name != "highlight" || len(m.Value) > maxTweak
		})
		text = strictjson.AppendMembers([]byte{'{'}, all)
	}
	return string(append(text, '}'))
}

func readTweak(action string) (name, value string) {
	w := strictjson.Walk(action)
	if w.Next() != '{' {
		return "", ""
	}
	for member := range w.Object() {
		switch {
		case member == "set_tweak" && w.Next() == '"':
			name = w.String()
		case member == "value":
			value = w.Skip()
		}
	}
	if name == "highlight" && value == "" {
		value = "true"
	}
	return name, value
}
