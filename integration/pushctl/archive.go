package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// An archive holds what is stored for users, byte for byte: a header, a line for
// each value, and a trailer with their number and the SHA-256 of all that comes
// before it. Each line is a JSON object.

// archiveFormat is that of the archives that are written.
const archiveFormat = 1

type archiveHeader struct {
	Format  int    `json:"pushctl_archive"`
	Created string `json:"created"`
	Redis   string `json:"redis"`
	Prefix  string `json:"key_prefix"`
}

type archiveTrailer struct {
	Records *int64 `json:"records"`
	Sum     string `json:"sha256"`
}

// record is a value: the event of a user or the fields of their hash.
type record struct {
	user   mxid.UserID
	event  *string           // nil for a hash
	fields map[string]string // of a hash, its revision included
}

// key is the key that the record is for.
func (r record) key(keys stored.Keys) string {
	if r.event != nil {
		return keys.Rules(r.user)
	}
	return keys.Pushers(r.user)
}

// what is a word for lists.
func (r record) what() string {
	if r.event != nil {
		return "push rules"
	}
	return "pushers"
}

// line is a record in JSON. What is no UTF-8 is in base64.
type line struct {
	User         mxid.UserID       `json:"user"`
	Event        *string           `json:"push_rules,omitempty"`
	EventBytes   []byte            `json:"push_rules_base64,omitempty"`
	Pushers      map[string]string `json:"pushers,omitempty"`
	PushersBytes map[string]string `json:"pushers_base64,omitempty"`
}

// appendLine appends the record as a line.
func (r record) appendLine(dst *bytes.Buffer) error {
	l := line{User: r.user}
	switch {
	case r.event != nil && utf8.ValidString(*r.event):
		l.Event = r.event
	case r.event != nil:
		l.EventBytes = []byte(*r.event)
	case allUTF8(r.fields):
		l.Pushers = r.fields
	default:
		l.PushersBytes = make(map[string]string, len(r.fields))
		for field, text := range r.fields {
			l.PushersBytes[base64.StdEncoding.EncodeToString([]byte(field))] = base64.StdEncoding.EncodeToString([]byte(text))
		}
	}
	return writeJSON(dst, l)
}

func allUTF8(fields map[string]string) bool {
	for field, text := range fields {
		if !utf8.ValidString(field) || !utf8.ValidString(text) {
			return false
		}
	}
	return true
}

// record returns the record in a line.
func (l line) record() (r record, err error) {
	r = record{user: l.User, event: l.Event, fields: l.Pushers}
	if l.EventBytes != nil {
		text := string(l.EventBytes)
		r.event = &text
	}
	for name, value := range l.PushersBytes {
		field, fieldErr := base64.StdEncoding.DecodeString(name)
		text, textErr := base64.StdEncoding.DecodeString(value)
		if r.fields == nil {
			r.fields = map[string]string{}
		}
		r.fields[string(field)] = string(text)
		err = errors.Join(err, fieldErr, textErr)
	}
	if err == nil && (r.event == nil) == (r.fields == nil) {
		err = errors.New("want either push rules or pushers")
	}
	return r, errors.Join(err, r.user.Validate())
}

// archiveWriter writes an archive. It can be written on later, from where its
// state was taken.
type archiveWriter struct {
	to  io.Writer
	sum hash.Hash
	archiveState
}

// archiveState is how far an archive is.
type archiveState struct {
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"`
	Sum     []byte `json:"sum"` // the state of the hash
}

// newArchive begins an archive.
func newArchive(to io.Writer, b *backend) (*archiveWriter, error) {
	w := &archiveWriter{to: to, sum: sha256.New()}
	var text bytes.Buffer
	header := archiveHeader{archiveFormat, time.Now().UTC().Format(time.RFC3339), b.servers.String(), b.keys.Prefix}
	if err := writeJSON(&text, header); err != nil {
		return nil, err
	}
	return w, w.write(text.Bytes(), 0)
}

// resumeArchive goes on with an archive that is as long as its state says.
func resumeArchive(to io.Writer, state archiveState) (*archiveWriter, error) {
	w := &archiveWriter{to: to, sum: sha256.New(), archiveState: state}
	err := w.sum.(encoding.BinaryUnmarshaler).UnmarshalBinary(state.Sum)
	return w, err
}

// write appends lines with some records.
func (w *archiveWriter) write(lines []byte, records int64) error {
	if _, err := w.to.Write(lines); err != nil {
		return err
	}
	_, _ = w.sum.Write(lines) // it never fails
	w.Records += records
	w.Bytes += int64(len(lines))
	return nil
}

// state returns how far the archive is.
func (w *archiveWriter) state() (s archiveState, err error) {
	s = w.archiveState
	s.Sum, err = w.sum.(encoding.BinaryMarshaler).MarshalBinary()
	return s, err
}

// end writes the trailer.
func (w *archiveWriter) end() error {
	var text bytes.Buffer
	if err := writeJSON(&text, archiveTrailer{&w.Records, hex.EncodeToString(w.sum.Sum(nil))}); err != nil {
		return err
	}
	_, err := w.to.Write(text.Bytes())
	return err
}

// damagedArchiveError tells what is wrong with an archive.
type damagedArchiveError struct {
	line  int64
	cause string
}

func (e *damagedArchiveError) Error() string {
	return fmt.Sprintf("the archive is damaged, nothing more was read: line %d: %s", e.line, e.cause)
}

// maxLine bounds a line: more than 1 MiB of an event, and what JSON adds to it.
const maxLine = 64 << 20

// readArchive reads an archive from its start and hands out its records. That it
// is whole is known only at the end. Its errors repeat nothing of a line.
func readArchive(from io.Reader, each func(number int64, r record) error) (records int64, err error) {
	sum, lines := sha256.New(), bufio.NewScanner(from)
	lines.Buffer(make([]byte, 1<<16), maxLine)
	lines.Split(splitLines)
	for number := int64(1); lines.Scan(); number++ {
		text := lines.Bytes()
		switch {
		case number == 1:
			if err := checkHeader(text); err != nil {
				return 0, err
			}
		case bytes.HasPrefix(text, []byte(`{"records":`)):
			return records, checkTrailer(text, number, records, sum, lines)
		default:
			var l line
			var r record
			if err = strictUnmarshal(text, &l); err == nil {
				r, err = l.record()
			}
			if err != nil {
				return 0, &damagedArchiveError{number, "it is no record"}
			}
			records++
			if err := each(number, r); err != nil {
				return 0, err
			}
		}
		_, _ = sum.Write(text)
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return 0, err
	}
	return 0, &damagedArchiveError{records + 2, "it ends without a trailer"}
}

// splitLines splits after each line feed. What comes after the last one is a
// line, too.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

func strictUnmarshal(text []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}

func checkHeader(text []byte) error {
	var h archiveHeader
	if strictUnmarshal(text, &h) != nil || h.Format == 0 {
		return &damagedArchiveError{1, "it is not the header of an archive"}
	}
	if h.Format != archiveFormat {
		return fmt.Errorf("the archive has format %d, want %d", h.Format, archiveFormat)
	}
	return nil
}

func checkTrailer(text []byte, number, records int64, sum hash.Hash, lines *bufio.Scanner) error {
	var t archiveTrailer
	switch {
	case strictUnmarshal(text, &t) != nil || t.Records == nil || text[len(text)-1] != '\n':
		return &damagedArchiveError{number, "it is not a whole trailer"}
	case *t.Records != records:
		return &damagedArchiveError{number, fmt.Sprintf("it tells of %d records, and there are %d", *t.Records, records)}
	case t.Sum != hex.EncodeToString(sum.Sum(nil)):
		return &damagedArchiveError{number, "the SHA-256 of what comes before is another"}
	case lines.Scan():
		return &damagedArchiveError{number + 1, "something follows the trailer"}
	}
	return lines.Err()
}
