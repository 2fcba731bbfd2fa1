package match

import (
	"slices"
	"strings"
)

type key struct {
	parts []string
	slot  slot
}

// parseKey reads a path (Matrix specification, appendices, "Dot-separated property
// paths"). A backslash escapes only a dot or a backslash; otherwise it is literal.
func parseKey(path string) key { return newKey(splitPath(path)) }

func newKey(parts []string) key {
	for _, k := range wellKnown {
		if slices.Equal(k.parts, parts) {
			return k
		}
	}
	return key{parts: parts}
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

// slot numbers the properties that rules often use; 0 is any other property.
type slot uint8

const (
	slotContent slot = 1 + iota
	slotType
	slotRoomID
	slotSender
	slotStateKey
	slotBody
	slotMsgtype
	slotMembership
	slotMentions
	slotMentionedUsers
	slotMentionsRoom
	slotRelatesTo
	slotRelType

	slotCount
	slotEvent = slotCount // the event itself, the parent of its top-level properties
)

var wellKnown = newWellKnown([slotCount]string{
	slotContent:        "content",
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
	slotRelatesTo:      `content.m\.relates_to`,
	slotRelType:        `content.m\.relates_to.rel_type`,
})

func newWellKnown(paths [slotCount]string) (keys [slotCount]key) {
	for s := slotContent; s < slotCount; s++ {
		keys[s] = key{parts: splitPath(paths[s]), slot: s}
	}
	return keys
}

func slotOf(parent slot, name string) slot {
	switch parent {
	case slotEvent:
		switch name {
		case "content":
			return slotContent
		case "type":
			return slotType
		case "room_id":
			return slotRoomID
		case "sender":
			return slotSender
		case "state_key":
			return slotStateKey
		}
	case slotContent:
		switch name {
		case "body":
			return slotBody
		case "msgtype":
			return slotMsgtype
		case "membership":
			return slotMembership
		case "m.mentions":
			return slotMentions
		case "m.relates_to":
			return slotRelatesTo
		}
	case slotMentions:
		switch name {
		case "user_ids":
			return slotMentionedUsers
		case "room":
			return slotMentionsRoom
		}
	case slotRelatesTo:
		if name == "rel_type" {
			return slotRelType
		}
	}
	return 0
}
