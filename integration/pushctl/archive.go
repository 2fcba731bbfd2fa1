package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// An archive has the users' values, byte for byte: a header, a line for each value, and a
// trailer with the number of values and the SHA-256 of the lines before. Each line is a JSON
// object.

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

// record is a user's value: an event, or the fields of a pusher hash.
type record struct {
	user   mxid.UserID
	event  *string           // nil for a hash
	fields map[string]string // of a hash, with its revision
}

func (r record) key(keys stored.Keys) string {
	if r.event != nil {
		return keys.Rules(r.user)
	}
	return keys.Pushers(r.user)
}

func (r record) kindName() string {
	if r.event != nil {
		return "push rules"
	}
	return "pushers"
}

// otherVersion returns a [fault.OtherVersionError] for a value of another version.
func (r record) otherVersion() error {
	err := stored.CheckForm(r.fields)
	if r.event != nil {
		_, err = stored.ReadEvent(*r.event)
	}
	var other *fault.OtherVersionError
	if errors.As(err, &other) {
		return other
	}
	return nil
}

// line is a record in JSON. Values that are not UTF-8 are in base64.
type line struct {
	User         mxid.UserID       `json:"user"`
	Event        *string           `json:"push_rules,omitempty"`
	EventBytes   []byte            `json:"push_rules_base64,omitempty"`
	Pushers      map[string]string `json:"pushers,omitempty"`
	PushersBytes map[string]string `json:"pushers_base64,omitempty"`
}

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

type archive struct {
	to             io.Writer
	file           *os.File // nil for stdout
	sum            hash.Hash
	records, bytes int64
}

func newArchive(to io.Writer, b *backend) (*archive, error) {
	a := &archive{to: to, sum: sha256.New()}
	var text bytes.Buffer
	header := archiveHeader{archiveFormat, time.Now().UTC().Format(time.RFC3339), b.servers.String(), b.keys.Prefix}
	if err := writeJSON(&text, header); err != nil {
		return nil, err
	}
	return a, a.write(text.Bytes())
}

// errLocked is the error of a file that another export writes.
var errLocked = errors.New("another export writes it")

// createArchive begins an archive in a new file that only its owner can read. It locks the
// file, if the file system has locks. It fails if the file or a link exists.
func createArchive(name string, b *backend) (*archive, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// Another export may have removed the file before it had the lock.
	own, ownErr := file.Stat()
	if err := lock(file); errors.Is(err, errLocked) {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), file.Close())
	}
	if now, err := os.Lstat(name); err != nil || ownErr != nil || !os.SameFile(own, now) {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, errLocked), file.Close())
	}
	a, err := newArchive(file, b)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	a.file = file
	return a, nil
}

// add adds records. They are on disk after sync.
func (a *archive) add(records ...record) error {
	var text bytes.Buffer
	for _, r := range records {
		if err := r.appendLine(&text); err != nil {
			return err
		}
	}
	a.records += int64(len(records))
	return a.write(text.Bytes())
}

func (a *archive) write(lines []byte) error {
	_, _ = a.sum.Write(lines)
	n, err := a.to.Write(lines)
	a.bytes += int64(n)
	return err
}

func (a *archive) sync() error {
	if a.file == nil {
		return nil
	}
	return a.file.Sync()
}

// end writes the trailer, without which an archive is incomplete.
func (a *archive) end() error {
	var text bytes.Buffer
	err := writeJSON(&text, archiveTrailer{&a.records, hex.EncodeToString(a.sum.Sum(nil))})
	if err == nil {
		err = errors.Join(a.write(text.Bytes()), a.sync())
	}
	return err
}

// damagedArchiveError is the first fault of an archive.
type damagedArchiveError struct {
	line  int64
	cause string
}

func (e *damagedArchiveError) Error() string {
	return fmt.Sprintf("the archive is damaged: line %d: %s", e.line, e.cause)
}

// maxLine is more than an event of 1 MiB with JSON escapes.
const maxLine = 64 << 20

// readArchive calls visit for each record. Only the end of an archive shows whether it is
// complete. Errors do not repeat a line's text.
func readArchive(from io.Reader, visit func(number int64, r record) error) (records int64, err error) {
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
				return 0, &damagedArchiveError{number, "not a record"}
			}
			records++
			if err := visit(number, r); err != nil {
				return 0, err
			}
		}
		_, _ = sum.Write(text)
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return 0, err
	}
	return 0, &damagedArchiveError{records + 2, "the trailer is missing"}
}

// splitLines splits after each line feed. Text after the last one is a line too.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

func checkHeader(text []byte) error {
	var h archiveHeader
	if strictUnmarshal(text, &h) != nil || h.Format == 0 {
		return &damagedArchiveError{1, "not the header of an archive"}
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
		return &damagedArchiveError{number, "not a complete trailer"}
	case *t.Records != records:
		return &damagedArchiveError{number, fmt.Sprintf("the trailer counts %d records, the archive has %d", *t.Records, records)}
	case t.Sum != hex.EncodeToString(sum.Sum(nil)):
		return &damagedArchiveError{number, "the SHA-256 differs"}
	case lines.Scan():
		return &damagedArchiveError{number + 1, "text after the trailer"}
	}
	return lines.Err()
}
