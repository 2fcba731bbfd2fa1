package stored

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
	"unsafe"
)

// An event with canonical rules, see [pushrule.Ruleset.IsCanonical], ends with a digest of
// the text before it, as a member of its revision:
//
//	,"digest":"d4b89f53"}
//
// A reader that finds the right digest need not check the rules. After an edit by hand,
// the digest is wrong, and the rules are checked. The digest of an event that was copied
// as a whole is right, but its rules were checked before they were written.
//
// The digest is a CRC-32C in hexadecimal. It does not protect against
// attackers with access to Redis, because they can store any rules anyway. It detects all edits of up to four consecutive
// bytes, and all but one in 2^32 of other edits; an undetected edit is served as it is.
//
// A change of the canonical form, or of the legacy rules, must rename the digest, so that
// events with old digests are checked again.
const (
	digestStart = `,"` + digestMember + `":"`
	digestEnd   = `"}`
	digestChars = 2 * crc32.Size
	digestBytes = len(digestStart) + digestChars + len(digestEnd)
)

// digestOf returns the digest member of a text, with the brace that ends the revision.
func digestOf(text string) string {
	sum := crc32.Checksum(unsafe.Slice(unsafe.StringData(text), len(text)), crc32.MakeTable(crc32.Castagnoli)) // only reads the bytes
	return digestStart + hex.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)) + digestEnd
}

func hasDigest(text string) bool {
	at := len(text) - digestBytes - len(eventEnd)
	return at > 0 && strings.HasPrefix(text[at:], digestStart) && text[at:] == digestOf(text[:at])+eventEnd
}
