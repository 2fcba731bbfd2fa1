package match

import (
	"github.com/pushfx/pushfx/module/mxid"
)

// Facts are the facts about the user and the room at the time of the event. Omit
// unknown facts; conditions about them do not match.
type Facts struct {
	User        mxid.UserID // whose rules they are
	DisplayName string      // the user's in the room; empty: none, or not known
	Power       *int64      // the user's power level in the room, see [Member]; nil: not known
	Room        Room
}

// Room is the facts about a room, which are the same for all its members.
type Room struct {
	MemberCount int    // joined members; 0: not known
	Power       *Power // nil: not known
}
