package match

import (
	"github.com/pushfx/pushfx/module/mxid"
)

// Facts is what an evaluation has to know beside the event, as of the event.
// What is not known is left out; conditions about it do not match.
type Facts struct {
	User        mxid.UserID // whose rules they are
	DisplayName string      // the user's in the room; empty: none, or not known
	Power       *int64      // the user's power level in the room, see [Member]; nil: not known
	Room        Room
}

// Room is what the evaluation has to know of a room: the same for all its
// members. The zero value knows nothing.
type Room struct {
	MemberCount int    // joined members; 0: not known
	Power       *Power // nil: not known
}
