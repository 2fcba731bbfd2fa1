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
	Time    int64  // seconds since 1970; nothing depends on it since form 6
}

// MaxWriters is how many writers a revision remembers. A writer whose answer was
// lost finds out what became of its write unless so many others wrote since; then
// it knows that it cannot tell; see [Revision.MayHaveDropped].
const MaxWriters = 16

// The parts of a revision.
const (
	revisionStart   = `{"version":`
	revisionChanges = `,"changes":`
	revisionWriters = `,"writers":{`
	revisionEnd     = "}}"
)

// AppendJSON appends the revision as JSON, {"version":1763716975000000,"changes":12,
// "writers":{"W":[17,1763716975]}}: for each writer the number of its last write
// and the time of it.
func (r Revision) AppendJSON(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, revisionStart...), r.Version, 10)
	dst = strconv.AppendInt(append(dst, revisionChanges...), r.Changes, 10)
	dst = append(dst, revisionWriters...)
	for _, w := range r.Writes {
		dst = append(strictjson.AppendMember(dst, w.Writer), '[')
		dst = append(strconv.AppendInt(dst, w.Attempt, 10), ',')
		dst = append(strconv.AppendInt(dst, w.Time, 10), ']')
	}
	return append(dst, revisionEnd...)
}

// ReadRevision reads what [Revision.AppendJSON] appends, or what the first forms
// had, without the changes. It passes over the digest of an event, and members that a
// later form may have after the writers. Anything else gives the zero Revision: what
// somebody else has edited has none.
func ReadRevision(text string) Revision {
	s := scanner{rest: text, fits: true}
	var r Revision
	s.expect(revisionStart)
	r.Version = s.number()
	if strings.HasPrefix(s.rest, revisionChanges) {
		s.expect(revisionChanges)
		r.Changes = s.number()
	}
	s.expect(revisionWriters)
	for s.fits && !strings.HasPrefix(s.rest, "}") {
		if len(r.Writes) > 0 {
			s.expect(",")
		}
		w := s.write()
		s.fits = s.fits && !slices.ContainsFunc(r.Writes, func(other Write) bool { return other.Writer == w.Writer })
		r.Writes = append(r.Writes, w)
	}
	rest, closed := strings.CutPrefix(s.rest, "}")
	isWhole := rest == "}" || isDigest(rest) || strings.HasPrefix(rest, ",") && strictjson.Valid(text)
	if !s.fits || !closed || !isWhole {
		return Revision{}
	}
	return r
}

// scanner reads a text from its start, as long as that fits.
type scanner struct {
	rest string
	fits bool
}

func (s *scanner) expect(part string) {
	rest, found := strings.CutPrefix(s.rest, part)
	s.rest, s.fits = rest, s.fits && found
}

// number reads digits, as many as are sure to fit.
func (s *scanner) number() (n int64) {
	i := 0
	for ; i < len(s.rest) && i < 18 && s.rest[i] >= '0' && s.rest[i] <= '9'; i++ {
		n = 10*n + int64(s.rest[i]-'0')
	}
	s.fits = s.fits && i > 0 && (s.rest[0] != '0' || i == 1)
	s.rest = s.rest[i:]
	return n
}

// write reads "W":[1,2].
func (s *scanner) write() (w Write) {
	s.expect(`"`)
	i := 0
	for i < len(s.rest) && (s.rest[i] >= 'A' && s.rest[i] <= 'Z' || s.rest[i] >= '0' && s.rest[i] <= '9') {
		i++
	}
	s.fits = s.fits && i > 0
	w.Writer, s.rest = s.rest[:i], s.rest[i:]
	s.expect(`":[`)
	w.Attempt = s.number()
	s.expect(",")
	w.Time = s.number()
	s.expect("]")
	return w
}

// LastWrite returns the part of a text that begins with the last write of a revision
// that the text ends with: no other write leaves the same. It is empty if the
// revision has no writes, or is not in the text.
func LastWrite(text string, r Revision) string {
	if len(r.Writes) == 0 {
		return ""
	}
	last := r.Writes[len(r.Writes)-1]
	at := strings.LastIndex(text, `"`+last.Writer+`":[`+strconv.FormatInt(last.Attempt, 10)+",")
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
