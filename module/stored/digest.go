package stored

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
	"unsafe"
)

// An event with canonical rules, see [pushrule.Ruleset.IsCanonical], ends with a digest
// of the text before it, as a member of its revision:
//
//	,"digest":"d4b89f53"}
//
// A reader that finds the right digest need not check the rules, because they were
// checked before they were written. After an edit by hand, the digest is wrong, and the
// reader checks the rules.
//
// The digest is a CRC-32C in hexadecimal. It detects all edits of up to four
// consecutive bytes, and all but one in 2^32 of other edits; an undetected edit is
// served as it is. Attackers with access to Redis can store any rules anyway.
//
// A change of the canonical form, or of the legacy rules, must rename the digest, so
// that old events are checked again.
const (
	digestStart = `,"` + digestMember + `":"`
	digestEnd   = `"}`
	digestChars = 2 * crc32.Size
	digestBytes = len(digestStart) + digestChars + len(digestEnd)
)

func digestOf(text string) string {
	sum := crc32.Checksum(unsafe.Slice(unsafe.StringData(text), len(text)), crc32.MakeTable(crc32.Castagnoli))
	return digestStart + hex.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)) + digestEnd
}

func hasDigest(text string) bool {
	at := len(text) - digestBytes - len(eventEnd)
	return at > 0 && strings.HasPrefix(text[at:], digestStart) && text[at:] == digestOf(text[:at])+eventEnd
}
