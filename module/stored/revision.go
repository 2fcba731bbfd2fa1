package stored

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Revision is a part of a value and names its latest writes. Each write leaves a
// different revision. So a write that was prepared for a replaced value cannot take
// effect, and a writer finds in the revision whether its last write took effect.
type Revision struct {
	// Version grows with each change. It is the time of the change in microseconds
	// since 1970, by the store's clock, or a little more than the previous version if
	// the clock is behind. So it usually grows even if the value was deleted in
	// between. 0 before the first write.
	Version int64

	Changes int64

	// Writes has the last write of each recent writer, in order.
	Writes []Write
}

// Write identifies a write that took effect.
type Write struct {
	Writer  string // capital letters and digits, unique for each store of each host
	Attempt int64  // the number of the write, counted by the writer
}

// MaxWriters is how many writers a revision remembers. After a lost reply, a writer can
// tell the outcome until that many other writers have followed.
const MaxWriters = 16

// Only revisions of events have a digest; see [digestOf].
const (
	versionMember = "version"
	changesMember = "changes"
	writersMember = "writers"
	digestMember  = "digest"
)

// AppendJSON appends the stored form, for example
// {"version":1763716975000000,"changes":12,"writers":{"W":17}}, with the number of each
// writer's last write.
func (r Revision) AppendJSON(dst []byte) []byte {
	dst = strconv.AppendInt(strictjson.AppendMember(append(dst, '{'), versionMember), r.Version, 10)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, changesMember), r.Changes, 10)
	dst = append(strictjson.AppendMember(dst, writersMember), '{')
	for _, w := range r.Writes {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, w.Writer), w.Attempt, 10)
	}
	return append(dst, revisionEnd...)
}

const revisionEnd = "}}"

// ReadRevision reads the form of [Revision.AppendJSON], with or without a digest. Other
// texts give the zero Revision, because an edited revision proves nothing.
func ReadRevision(text string) Revision {
	if !strictjson.Valid(text) {
		return Revision{}
	}
	return readRevision(strictjson.Walk(text))
}

// readRevision is [ReadRevision] for valid JSON.
func readRevision(w strictjson.Walker) Revision {
	if w.Next() != '{' {
		return Revision{}
	}
	r := Revision{Version: noNumber, Changes: noNumber}
	hasWriters := false
	for name := range w.Object() {
		switch name {
		case versionMember:
			r.Version = readNumber(w.Skip())
		case changesMember:
			r.Changes = readNumber(w.Skip())
		case writersMember:
			r.Writes, hasWriters = readWrites(&w)
		case digestMember:
			w.Skip()
		default:
			return Revision{}
		}
	}
	if r.Version == noNumber || r.Changes == noNumber || !hasWriters {
		return Revision{}
	}
	return r
}

func readWrites(w *strictjson.Walker) (writes []Write, ok bool) {
	if w.Next() != '{' {
		w.Skip()
		return nil, false
	}
	ok = true
	for writer := range w.Object() {
		attempt := readNumber(w.Skip())
		ok = ok && attempt != noNumber
		writes = append(writes, Write{writer, attempt})
	}
	return writes, ok
}

const noNumber = -1

func readNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= textVersionBit {
		return noNumber
	}
	return n
}

// LastWrite returns the end of a text from the last write of its revision on, which
// identifies the text. It is empty if the text lacks that write.
func LastWrite(text string, r Revision) string {
	if len(r.Writes) == 0 {
		return ""
	}
	last := r.Writes[len(r.Writes)-1]
	at := strings.LastIndex(text, `"`+last.Writer+`":`+strconv.FormatInt(last.Attempt, 10)+"}")
	if at < 0 {
		return ""
	}
	return text[at:]
}

// Equal reports whether both are the revision of the same write.
func (r Revision) Equal(other Revision) bool {
	return r.Version == other.Version && r.Changes == other.Changes && slices.Equal(r.Writes, other.Writes)
}

// Last returns the number of a writer's last write, 0 if there is none.
func (r Revision) Last(writer string) int64 {
	for _, w := range r.Writes {
		if w.Writer == writer {
			return w.Attempt
		}
	}
	return 0
}

// MayHaveDropped reports whether a write that r does not list may have taken effect. A
// revision lists only the last [MaxWriters] writers, so later writers may have pushed the
// write out. Base is the revision that the write replaces.
func (r Revision) MayHaveDropped(base Revision) bool {
	stayed := func(w Write) bool { return slices.Contains(base.Writes, w) }
	return len(r.Writes) >= MaxWriters && !slices.ContainsFunc(r.Writes, stayed)
}

// Next returns the revision of a write that replaces a value of revision r. Changes
// grows by one, unless version equals r's: then the write repeats the same value.
func (r Revision) Next(version int64, by Write) Revision {
	changes := r.Changes
	if version != r.Version {
		changes++
	}
	writes := make([]Write, 0, len(r.Writes)+1)
	for _, w := range r.Writes {
		if w.Writer != by.Writer {
			writes = append(writes, w)
		}
	}
	writes = append(writes, by)
	return Revision{version, changes, writes[max(0, len(writes)-MaxWriters):]}
}
