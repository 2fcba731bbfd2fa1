package match

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
)

// Power has the sender's power level and the levels that actions need (Matrix
// specification, "m.room.power_levels"). [ReadPower] reads it from the room's state.
type Power struct {
	Sender        int64            // power level of the event's sender
	SenderCreator bool             // the sender is a creator in room version 12 or later, and so above all levels
	Notifications map[string]int64 // content.notifications of m.room.power_levels
	Permissions   map[string]int64 // content.ban, invite, kick and redact of the same event; absent levels have the specification's defaults
}

// Only the notification "room" has a default level in the specification.
const (
	roomNotification      = "room"
	roomNotificationLevel = 50
)

func (p *Power) mayNotify(notification string) bool {
	needed, found := p.needed(notification)
	return found && (p.SenderCreator || p.Sender >= needed)
}

func (p *Power) needed(notification string) (level int64, found bool) {
	if level, found = p.Notifications[notification]; found {
		return level, true
	}
	return roomNotificationLevel, notification == roomNotification
}

var permissions = [...]string{"ban", "invite", "kick", "redact"}

// hasPermission evaluates recipient_permission. It looks up the required level once for
// all users.
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

func (p *Power) neededFor(action string) (level int64, found bool) {
	if !slices.Contains(permissions[:], action) {
		return 0, false
	}
	if level, found = p.Permissions[action]; found || action == "invite" {
		return level, true
	}
	return permissionLevel, true
}

// permissionLevel is the default for ban, kick and redact; the default for invite is 0.
const permissionLevel = 50

// Before room version 12, a room without m.room.power_levels gives its creator this
// level.
const creatorLevel = 100

// ReadPower reads power levels from two events in the room's state at the time of the
// evaluated event: m.room.create, and m.room.power_levels, whose text is empty if the
// room has none. Missing levels have the defaults of the specification
// ("m.room.power_levels"). Creators are above all levels from room version 12 on ("Room
// creators"); before, without levels, the creator has 100 and others have 0.
//
// A level is an integer, before room version 10 also a string with an integer, and before
// room version 6 also a float, which is truncated: 50.57 is 50. Any other value counts as
// absent.
//
// A room version that the specification lacks, such as "org.matrix.msc3757.11", is read as
// the newest; see [ReadPowerAs].
//
// Errors: [ErrNotAnEvent]. The Power is nil then: evaluate the event without it, so that
// only rules about power levels do not match.
func ReadPower(create, levels string, sender mxid.UserID) (*Power, error) {
	return readPower(create, levels, sender, (*Event).roomVersion)
}

// ReadPowerAs is [ReadPower] for a room with a version that the specification does not
// define. The caller names the defined version with the same rules about power levels and
// creators. A version below 1 means the newest.
func ReadPowerAs(create, levels string, sender mxid.UserID, version int) (*Power, error) {
	return readPower(create, levels, sender, func(*Event) int { return orNewest(version) })
}

func readPower(create, levels string, sender mxid.UserID, versionOf func(create *Event) int) (*Power, error) {
	c, err := ReadEvent(create)
	if err != nil {
		return nil, err
	}
	version := versionOf(c)
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

// newestVersion has the newest rules about power levels and creators.
const newestVersion = 12

// roomVersion returns the room's version, 1 if m.room.create has none.
func (e *Event) roomVersion() int {
	p := e.findPath("content", "room_version")
	if p == nil {
		return 1
	}
	version, _ := strconv.Atoi(p.value.text)
	if p.value.kind != textual || strconv.Itoa(version) != p.value.text {
		return newestVersion
	}
	return orNewest(version)
}

func orNewest(version int) int {
	if version < 1 {
		return newestVersion
	}
	return version
}

// isCreator tests content.creator before room version 11, and the sender from then on.
// From room version 12 on, it also tests the additional creators.
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

func (v value) level(version int) (level int64, ok bool) {
	switch {
	case v.kind == textual && version < 10:
		level, err := strconv.ParseInt(strings.TrimSpace(v.text), 10, 64)
		return level, err == nil
	case v.kind == compound && version < 6:
		return truncate(v.text)
	}
	return v.number, v.kind == integer
}

// truncate drops the fraction of a number (room version 1, "m.room.power_levels events
// accept values as floats"). Numbers beyond a double are refused, and numbers beyond an
// int64 count as its limits.
func truncate(number string) (level int64, ok bool) {
	float, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, false
	}
	if level, err := strconv.ParseInt(number, 10, 64); err == nil {
		return level, true // exact beyond 2^53
	}
	switch {
	case float >= math.MaxInt64:
		return math.MaxInt64, true
	case float <= math.MinInt64:
		return math.MinInt64, true
	}
	return int64(float), true
}

func (e *Event) findPath(parts ...string) *property {
	k := newKey(parts)
	return e.find(&k)
}
