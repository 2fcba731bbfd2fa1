package stored

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Revision is stored with a value, as a part of it, and tells which writes made it
// so. No two writes leave the same revision: a value that has been replaced never
// comes back, so that a write prepared for it can no longer take effect, and a
// writer finds in the revision whether its last write did.
type Revision struct {
	// Version grows with each change of the value. It is the time of the change
	// in microseconds since 1970, by the store's clock as the writer knows it, or
	// if that is not later, a little more than the last version. So it grows on
	// when a value is deleted and made anew. 0 if nothing was written yet.
	Version int64

	// Changes counts the changes of the value.
	Changes int64

	// Writes are the last write of each of the last writers, in order.
	Writes []Write
}

// Write is one that took effect.
type Write struct {
	Writer  string // capital letters and digits, another for each store of each host
	Attempt int64  // the number of the write among all of the writer
}

// MaxWriters is how many writers a revision remembers. A writer whose answer was
// lost finds out what became of its write unless so many others wrote since; then
// it knows that it cannot tell; see [Revision.MayHaveDropped].
const MaxWriters = 16

// The members of a revision. The digest is that of an event; see [digestOf].
const (
	versionMember = "version"
	changesMember = "changes"
	writersMember = "writers"
	digestMember  = "digest"
)

// AppendJSON appends the revision as JSON, {"version":1763716975000000,"changes":12,
// "writers":{"W":17}}: each writer has the number of its last write.
func (r Revision) AppendJSON(dst []byte) []byte {
	dst = strconv.AppendInt(strictjson.AppendMember(append(dst, '{'), versionMember), r.Version, 10)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, changesMember), r.Changes, 10)
	dst = append(strictjson.AppendMember(dst, writersMember), '{')
	for _, w := range r.Writes {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, w.Writer), w.Attempt, 10)
	}
	return append(dst, revisionEnd...)
}

// revisionEnd closes the writers and the revision.
const revisionEnd = "}}"

// ReadRevision reads the text that [Revision.AppendJSON] appends, also with the digest
// of an event. Any other text gives the zero Revision, because a revision that was
// edited by hand proves nothing.
func ReadRevision(text string) Revision {
	w := strictjson.Walk(text)
	if !strictjson.Valid(text) || w.Next() != '{' {
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

// readWrites reads the writers of a revision with their last writes.
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

// noNumber stands for a text that is no number of a revision.
const noNumber = -1

func readNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= isForeign {
		return noNumber
	}
	return n
}

// LastWrite returns the part of a text that begins with the last write of a revision
// that the text ends with: no other write leaves the same. It is empty if the
// revision has no writes, or is not in the text.
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

// Last returns the number of the last write of a writer, 0 for none.
func (r Revision) Last(writer string) int64 {
	for _, w := range r.Writes {
		if w.Writer == writer {
			return w.Attempt
		}
	}
	return 0
}

// MayHaveDropped reports whether a write that was made onto the revision before
// may have been in this one and left it: only if as many others as fit have
// written since. It is for a write that this revision does not have.
func (r Revision) MayHaveDropped(before Revision) bool {
	stayed := func(w Write) bool { return slices.Contains(before.Writes, w) }
	return len(r.Writes) >= MaxWriters && !slices.ContainsFunc(r.Writes, stayed)
}

// Next is the revision of a write onto a value with this one, which changes the
// value unless the version is the same.
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
