package commit

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Stamp is stored with a value, as a part of it, and tells of the writes that
// made it so. No two writes leave the same stamp: a value that has been
// replaced never comes back, so that a write made for it can no longer take
// effect, and a writer finds in the stamp whether its last one did.
type Stamp struct {
	// Version grows with each change of the value. It is the time of the change
	// in microseconds since 1970, by the store's clock as the writer knows it, or
	// if that is not later, the last version and a random number up to
	// [maxStep] more. The time has it grow on when a value is deleted and made
	// anew; the random number keeps changes that the store has lost from sharing
	// their versions with those that come instead. 0 if nothing was written yet.
	Version int64

	// Changes counts the changes of the value.
	Changes int64

	writes []write // the last write of each of the last writers, in order
}

// write is one that took effect.
type write struct {
	writer  string
	attempt int64
	at      int64 // seconds since 1970; for hosts of form 5 and before, which drop old writes
}

// maxWriters is how many writers a stamp remembers. A writer whose answer was
// lost finds out what became of its write unless so many others wrote since; then
// it knows that it cannot tell; see [Stamp.mayHaveDropped].
const maxWriters = 16

// maxStep is by how much a version grows at most if the clock is behind it, in
// microseconds.
const maxStep = 1000

// ReadStamp reads what [Stamp.AppendJSON] appends. Anything else is no stamp,
// which is the zero one: a value that was edited by hand has none.
func ReadStamp(text string) Stamp {
	if s, ok := lookStamp(text); ok {
		return s
	}
	return readStamp(text)
}

// lookStamp is a quick way to read what [Stamp.AppendJSON] appends, and takes
// nothing else.
func lookStamp(text string) (s Stamp, ok bool) {
	text, version := strings.CutPrefix(text, `{"version":`)
	s.Version, text = leadingNumber(text, &version)
	text, changes := strings.CutPrefix(text, `,"changes":`)
	s.Changes, text = leadingNumber(text, &changes)
	text, writers := strings.CutPrefix(text, `,"writers":{`)
	text, closed := strings.CutSuffix(text, "}}")
	if !version || !changes || !writers || !closed {
		return Stamp{}, false
	}
	for text != "" {
		w, rest, ok := lookWrite(text)
		if !ok || len(rest) == 1 || slices.ContainsFunc(s.writes, func(other write) bool { return other.writer == w.writer }) {
			return Stamp{}, false
		}
		s.writes = append(s.writes, w)
		text = strings.TrimPrefix(rest, ",")
	}
	return s, true
}

// lookWrite reads "W":[1,2] and what separates it from the next.
func lookWrite(text string) (w write, rest string, ok bool) {
	text, opened := strings.CutPrefix(text, `"`)
	w.writer, text, ok = strings.Cut(text, `":[`)
	ok = ok && opened && isPlainName(w.writer)
	w.attempt, text = leadingNumber(text, &ok)
	text, comma := strings.CutPrefix(text, ",")
	w.at, text = leadingNumber(text, &ok)
	rest, closed := strings.CutPrefix(text, "]")
	return w, rest, ok && comma && closed && (rest == "" || rest[0] == ',')
}

// isPlainName reports whether a name is one of a committer.
func isPlainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// leadingNumber reads the digits that a text begins with. Where that is no
// number of theirs, it says so.
func leadingNumber(text string, ok *bool) (n int64, rest string) {
	i := 0
	for ; i < len(text) && i < 18 && text[i] >= '0' && text[i] <= '9'; i++ {
		n = 10*n + int64(text[i]-'0')
	}
	*ok = *ok && i > 0 && (text[0] != '0' || i == 1)
	return n, text[i:]
}

func readStamp(text string) Stamp {
	if !strictjson.Valid(text) {
		return Stamp{}
	}
	r := stampReader{Walker: strictjson.Walk(text), fits: true}
	r.expect('{')
	var hasVersion, hasWriters bool
	var s Stamp
	for name := range r.Object() {
		switch name {
		case "version":
			hasVersion = true
			s.Version = r.number()
		case "changes":
			s.Changes = r.number()
		case "writers":
			hasWriters = true
			s.writes = r.writes()
		}
	}
	if !r.fits || !hasVersion || !hasWriters || s.Version < 0 {
		return Stamp{}
	}
	return s
}

// stampReader reads the parts of a stamp, in JSON.
type stampReader struct {
	strictjson.Walker
	fits bool // all was as it should be
}

// expect checks how the next value begins.
func (r *stampReader) expect(first byte) { r.fits = r.fits && r.Next() == first }

func (r *stampReader) number() int64 {
	n, err := strconv.ParseInt(r.Skip(), 10, 64)
	r.fits = r.fits && err == nil
	return n
}

func (r *stampReader) writes() (writes []write) {
	r.expect('{')
	for writer := range r.Object() {
		var numbers [2]int64
		r.expect('[')
		for i := range r.Array() {
			if i >= len(numbers) {
				r.fits = false
				break
			}
			numbers[i] = r.number()
		}
		writes = append(writes, write{writer, numbers[0], numbers[1]})
	}
	return writes
}

// AppendJSON appends the stamp as JSON, {"version":1763716975000000,"changes":12,
// "writers":{"W":[17,1763716975]}}: for each writer the number of its last write
// and the time of it.
func (s Stamp) AppendJSON(dst []byte) []byte {
	dst = strictjson.AppendMember(append(dst, '{'), "version")
	dst = strconv.AppendInt(dst, s.Version, 10)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "changes"), s.Changes, 10)
	dst = append(strictjson.AppendMember(dst, "writers"), '{')
	for _, w := range s.writes {
		dst = append(strictjson.AppendMember(dst, w.writer), '[')
		dst = append(strconv.AppendInt(dst, w.attempt, 10), ',')
		dst = append(strconv.AppendInt(dst, w.at, 10), ']')
	}
	return append(dst, "}}"...)
}

// Equal reports whether both are the stamp of the same write.
func (s Stamp) Equal(other Stamp) bool {
	return s.Version == other.Version && s.Changes == other.Changes && slices.Equal(s.writes, other.writes)
}

// last returns the number of the last write of a writer, 0 for none.
func (s Stamp) last(writer string) int64 {
	for _, w := range s.writes {
		if w.writer == writer {
			return w.attempt
		}
	}
	return 0
}

// mayHaveDropped reports whether a write that was made onto the stamp before may
// have been in this one and left it: only if as many others as fit have written
// since. It is for a write that this stamp does not have.
func (s Stamp) mayHaveDropped(before Stamp) bool {
	stayed := func(w write) bool { return slices.Contains(before.writes, w) }
	return len(s.writes) >= maxWriters && !slices.ContainsFunc(s.writes, stayed)
}

// next is the stamp of a write onto a value with this one, which changes the
// value unless the version is the same.
func (s Stamp) next(version int64, by write) Stamp {
	changes := s.Changes
	if version != s.Version {
		changes++
	}
	writes := make([]write, 0, len(s.writes)+1)
	for _, w := range s.writes {
		if w.writer != by.writer {
			writes = append(writes, w)
		}
	}
	writes = append(writes, by)
	return Stamp{version, changes, writes[max(0, len(writes)-maxWriters):]}
}

// versionAfter returns the version of a change at a time.
func (s Stamp) versionAfter(now time.Time) int64 {
	if version := now.UnixMicro(); version > s.Version {
		return version
	}
	return s.Version + 1 + rand.Int64N(maxStep)
}
