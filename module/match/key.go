package match

import (
	"slices"
	"strings"
)

// key names a property of an event by its path.
type key struct {
	parts []string
	hash  uint64
	slot  slot
}

// parseKey reads a path (Matrix specification, appendices, "Dot-separated
// property paths"): a backslash escapes a dot or a backslash; before anything
// else, and at the end, it is a backslash.
func parseKey(path string) key { return newKey(splitPath(path)) }

// newKey returns the key of a path.
func newKey(parts []string) key {
	k := key{parts: parts, hash: pathHash(parts)}
	k.slot = wellKnown.find(k.hash, func(known key) bool { return slices.Equal(known.parts, k.parts) })
	return k
}

func splitPath(path string) []string {
	if strings.IndexByte(path, '\\') < 0 {
		return strings.Split(path, ".")
	}
	var parts []string
	var part []byte
	for i := 0; i < len(path); i++ {
		c := path[i]
		escapes := c == '\\' && i+1 < len(path) && (path[i+1] == '.' || path[i+1] == '\\')
		switch {
		case escapes:
			i++
			part = append(part, path[i])
		case c == '.':
			parts = append(parts, string(part))
			part = part[:0]
		default:
			part = append(part, c)
		}
	}
	return append(parts, string(part))
}

func pathHash(parts []string) (hash uint64) {
	for _, part := range parts {
		hash = childHash(hash, part)
	}
	return hash
}

// slot is the place of a property that rules often ask for, 0 for any other.
type slot uint8

const (
	slotType slot = 1 + iota
	slotRoomID
	slotSender
	slotStateKey
	slotBody
	slotMsgtype
	slotMembership
	slotMentions
	slotMentionedUsers
	slotMentionsRoom
	slotRelType

	slotCount
)

// slotTable finds the slot of a path by its hash.
type slotTable struct {
	keys [slotCount]key
	at   [256]slot // by the last byte of the hash
}

var wellKnown = newSlotTable([slotCount]string{
	slotType:           "type",
	slotRoomID:         "room_id",
	slotSender:         "sender",
	slotStateKey:       "state_key",
	slotBody:           "content.body",
	slotMsgtype:        "content.msgtype",
	slotMembership:     "content.membership",
	slotMentions:       `content.m\.mentions`,
	slotMentionedUsers: `content.m\.mentions.user_ids`,
	slotMentionsRoom:   `content.m\.mentions.room`,
	slotRelType:        `content.m\.relates_to.rel_type`,
})

func newSlotTable(paths [slotCount]string) *slotTable {
	t := &slotTable{}
	for s := slotType; s < slotCount; s++ {
		parts := splitPath(paths[s])
		k := key{parts: parts, hash: pathHash(parts), slot: s}
		t.keys[s] = k
		at := uint8(k.hash)
		for t.at[at] != 0 {
			at++
		}
		t.at[at] = s
	}
	return t
}

// find returns the slot of the path with a hash, where same confirms that it
// is this path and not another of the same hash.
func (t *slotTable) find(hash uint64, same func(key) bool) slot {
	for at := uint8(hash); t.at[at] != 0; at++ {
		if s := t.at[at]; t.keys[s].hash == hash && same(t.keys[s]) {
			return s
		}
	}
	return 0
}
