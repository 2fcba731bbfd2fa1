package match

import (
	"github.com/pushfx/pushfx/module/mxid"
)

// Facts is what an evaluation has to know beside the event, as of the event.
// What is not known is left out; conditions about it do not match.
type Facts struct {
	User        mxid.UserID // whose rules they are
	DisplayName string      // the user's in the room; empty: none, or not known
	Room        Room
}

// Room is what the evaluation has to know of a room: the same for all its
// members. The zero value knows nothing.
type Room struct {
	MemberCount int    // joined members; 0: not known
	Power       *Power // nil: not known
}

// Power is who may notify a room (Matrix specification, "m.room.power_levels").
// [ReadPower] makes it out of a room's state.
type Power struct {
	Sender        int64            // power level of the event's sender
	SenderCreator bool             // the sender is above all levels: a creator, in room version 12 and later
	Notifications map[string]int64 // content.notifications of the event m.room.power_levels
}

// roomNotification is the only notification for which the specification has a
// level where the room has none.
const (
	roomNotification      = "room"
	roomNotificationLevel = 50
)

// mayNotify reports whether the sender has the level that a notification
// needs. Where neither the room nor the specification says which that is, the
// answer is no.
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
