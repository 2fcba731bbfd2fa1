package stored

import (
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
)

// unreadDigest is the prefix of the digest in the list at [Keys.Unread]: "1" is the
// form of the texts, "D" marks a digest.
const unreadDigest = "1D"

// UnreadDigest returns the item that follows a record in the list at [Keys.Unread]. A
// script compares it instead of the record, which may be long.
func UnreadDigest(record string) string {
	sum := sha1.Sum([]byte(record))
	return unreadDigest + hex.EncodeToString(sum[:])
}

// IsUnreadDigest reports whether a text has the form of [UnreadDigest].
func IsUnreadDigest(text string) bool {
	return len(text) == len(unreadDigest)+2*sha1.Size && strings.HasPrefix(text, unreadDigest)
}

// UnreadTexts returns the items of a list at [Keys.Unread] without the digest. It may
// change items.
func UnreadTexts(items []string) []string {
	if len(items) > 1 && IsUnreadDigest(items[1]) {
		return slices.Delete(items, 1, 2)
	}
	return items
}
