package match

import (
	"github.com/pushfx/pushfx/module/mxid"
)

// Facts describe the user and the room at the time of the event. Conditions about
// omitted facts do not match.
type Facts struct {
	User        mxid.UserID // owner of the rules
	DisplayName string      // the user's name in the room; empty: none or unknown
	Power       *int64      // the user's power level in the room, see [Member]; nil: unknown
	Room        Room
}

// Room has the facts that all members of a room share.
type Room struct {
	MemberCount int    // joined members; 0: unknown
	Power       *Power // nil: unknown
}
