package stored

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
	"unsafe"
)

// The revision of an event whose rules are canonical, see
// [pushrule.Ruleset.IsCanonical], ends with a digest of the text before it,
//
//	,"digest":"d4b89f53"}
//
// so that who reads the event need not prove again that it can be read. A text that was
// edited by hand does not have the digest that it says, and is proved. One that was
// copied as a whole does, and was proved before it was written.
//
// The digest is a CRC-32C in hexadecimal digits. It is no protection against who can
// write to Redis, who can store any rules anyway. Of edits by hand that leave the
// revision, it misses none that changes up to four bytes in a row, and of all others one
// in 2^32: such an event is served as it is.
//
// A change of the canonical form, or of the legacy rules, gives the digest another
// name, so that events with the old digest are proved again.
const (
	digestStart = `,"` + digestMember + `":"`
	digestEnd   = `"}`
	digestChars = 2 * crc32.Size
	digestBytes = len(digestStart) + digestChars + len(digestEnd)
)

// digestOf returns the end of the revision with which the text ends that far.
func digestOf(text string) string {
	sum := crc32.Checksum(unsafe.Slice(unsafe.StringData(text), len(text)), crc32.MakeTable(crc32.Castagnoli)) // it only looks at the bytes
	return digestStart + hex.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)) + digestEnd
}

// hasDigest reports whether an event ends with the digest of what is before.
func hasDigest(text string) bool {
	at := len(text) - digestBytes - len(eventEnd)
	return at > 0 && strings.HasPrefix(text[at:], digestStart) && text[at:] == digestOf(text[:at])+eventEnd
}
