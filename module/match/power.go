package match

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
)

// Power is the sender's power level and the levels that actions need (Matrix
// specification, "m.room.power_levels"). [ReadPower] reads it from a room's state.
type Power struct {
	Sender        int64            // power level of the event's sender
	SenderCreator bool             // the sender is above all levels: a creator, in room version 12 and later
	Notifications map[string]int64 // content.notifications of the event m.room.power_levels
	Permissions   map[string]int64 // ban, invite, kick and redact of its content; the specification's defaults for absent ones
}

// roomNotification is the only notification with a default level in the specification.
const (
	roomNotification      = "room"
	roomNotificationLevel = 50
)

// mayNotify reports whether the sender has the level for a notification. It is false
// for a notification without a level.
func (p *Power) mayNotify(notification string) bool {
	needed, found := p.needed(notification)
	return found && (p.SenderCreator || p.Sender >= needed)
}

// needed returns the level that a notification needs.
func (p *Power) needed(notification string) (level int64, found bool) {
	if level, found = p.Notifications[notification]; found {
		return level, true
	}
	return roomNotificationLevel, notification == roomNotification
}

// permissions are the keys of recipient_permission.
var permissions = [...]string{"ban", "invite", "kick", "redact"}

// hasPermission tests recipient_permission. It looks up the level of the room once for
// many users.
func (s *subject) hasPermission(c *condition) bool {
	if s.facts.Power == nil || s.facts.Room.Power == nil {
		return false
	}
	if s.permission != c {
		level, found := s.facts.Room.Power.neededFor(c.text)
		s.permission, s.needed, s.isNone = c, level, !found
	}
	return !s.isNone && *s.facts.Power >= s.needed
}

// neededFor returns the level that an action needs.
func (p *Power) neededFor(action string) (level int64, found bool) {
	if !slices.Contains(permissions[:], action) {
		return 0, false
	}
	if level, found = p.Permissions[action]; found || action == "invite" {
		return level, true
	}
	return permissionLevel, true
}

// permissionLevel is the default level for ban, kick and redact; for invite it is 0.
const permissionLevel = 50

// ErrRoomVersion is the error of [ReadPower] for a room version that is not a number.
var ErrRoomVersion = errors.New("match: the room's version is not one whose creators are known")

// creatorLevel is the level of a room's creator without m.room.power_levels, before room
// version 12.
const creatorLevel = 100

// ReadPower reads the power levels at the time of the event: create is the event
// m.room.create, levels is m.room.power_levels, or empty if the room has none. Missing
// levels have the defaults of the specification ("m.room.power_levels"). From room
// version 12 on, creators are above all levels (room version 12, "Room creators");
// before, the creator of a room without levels has 100, and others 0.
//
// A level is an integer or, before room version 10, a string with an integer. Any other
// value, such as 67.89, counts as absent.
//
// Errors: [ErrNotAnEvent], [ErrRoomVersion].
func ReadPower(create, levels string, sender mxid.UserID) (*Power, error) {
	c, err := ReadEvent(create)
	if err != nil {
		return nil, err
	}
	version, err := c.roomVersion()
	if err != nil {
		return nil, err
	}
	isCreator := c.isCreator(version, string(sender))
	power := &Power{SenderCreator: isCreator && version >= 12}
	if levels == "" {
		if isCreator {
			power.Sender = creatorLevel
		}
		return power, nil
	}
	l, err := ReadEvent(levels)
	if err != nil {
		return nil, err
	}
	power.read(l, version, string(sender))
	return power, nil
}

// roomVersion returns the room version in m.room.create, by default 1.
func (e *Event) roomVersion() (int, error) {
	p := e.findPath("content", "room_version")
	if p == nil {
		return 1, nil
	}
	version, err := strconv.Atoi(p.value.text)
	if p.value.kind != textual || err != nil || version < 1 {
		return 0, ErrRoomVersion
	}
	return version, nil
}

// isCreator reports whether m.room.create makes a user a creator: content.creator before
// room version 11, the sender from then on, and from room version 12 on also the
// additional creators.
func (e *Event) isCreator(version int, user string) bool {
	path := []string{"sender"}
	if version < 11 {
		path = []string{"content", "creator"}
	}
	if p := e.findPath(path...); p != nil && p.value == (value{kind: textual, text: user}) {
		return true
	}
	p := e.findPath("content", "additional_creators")
	return version >= 12 && p != nil && e.contains(p, value{kind: textual, text: user})
}

// read reads m.room.power_levels.
func (p *Power) read(levels *Event, version int, sender string) {
	for _, path := range [][]string{{"content", "users", sender}, {"content", "users_default"}} {
		if given := levels.findPath(path...); given != nil {
			if level, ok := given.value.level(version); ok {
				p.Sender = level
				break
			}
		}
	}
	for _, action := range permissions {
		if given := levels.findPath("content", action); given != nil {
			if level, ok := given.value.level(version); ok {
				p.Permissions = withLevel(p.Permissions, action, level)
			}
		}
	}
	notifications := levels.findPath("content", "notifications")
	if notifications == nil {
		return
	}
	for name, given := range levels.membersOf(notifications) {
		level, ok := given.level(version)
		if ok {
			p.Notifications = withLevel(p.Notifications, name, level)
		}
	}
}

func withLevel(levels map[string]int64, name string, level int64) map[string]int64 {
	if levels == nil {
		levels = map[string]int64{}
	}
	levels[name] = level
	return levels
}

// level returns a value as a power level.
func (v value) level(version int) (level int64, ok bool) {
	if v.kind == textual && version < 10 {
		level, err := strconv.ParseInt(strings.TrimSpace(v.text), 10, 64)
		return level, err == nil
	}
	return v.number, v.kind == integer
}

// findPath returns the property with a path, or nil.
func (e *Event) findPath(parts ...string) *property {
	k := newKey(parts)
	return e.find(&k)
}
