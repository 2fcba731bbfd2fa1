package main

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// An archive contains the users' values, byte for byte. It is a gzip file of JSON objects: a header, and an object for
// each value. The checksum of gzip shows whether the file is damaged or incomplete.

const archiveFormat = 1

type archiveHeader struct {
	Format  int    `json:"pushctl_archive"`
	Created string `json:"created"`
	Redis   string `json:"redis"`
	Prefix  string `json:"key_prefix"`
}

// record is a user's value: an event, or the fields of a pusher hash.
type record struct {
	user   mxid.UserID
	event  *string           // nil for a hash
	fields map[string]string // the fields of a hash, including its revision
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
	var other *fault.OtherVersionError
	if errors.As(r.check(), &other) {
		return other
	}
	return nil
}

// check returns an error for a value of another version and for an unreadable event. It does not read pushers.
func (r record) check() (err error) {
	if r.event == nil {
		return stored.CheckForm(r.fields)
	}
	_, err = stored.ReadEvent(*r.event)
	return err
}

// withoutUnreadable returns a hash without its unreadable pushers. Found reports whether it had some.
func (r record) withoutUnreadable() (readable record, found bool) {
	unreadable := stored.ReadHash(r.fields).Unreadable
	if len(unreadable) == 0 {
		return r, false
	}
	r.fields = maps.Clone(r.fields)
	for _, field := range unreadable {
		delete(r.fields, field)
	}
	return r, true
}

// converted returns the record with each text converted.
func (r record) converted(convert func(string) string) record {
	if r.event != nil {
		text := convert(*r.event)
		return record{user: r.user, event: &text}
	}
	fields := make(map[string]string, len(r.fields))
	for field, text := range r.fields {
		fields[convert(field)] = convert(text)
	}
	return record{user: r.user, fields: fields}
}

func (r record) isUTF8() bool {
	is := true
	r.converted(func(text string) string {
		is = is && utf8.ValidString(text)
		return text
	})
	return is
}

// line is a record in JSON.
type line struct {
	User    mxid.UserID       `json:"user"`
	Event   *string           `json:"push_rules,omitempty"`
	Pushers map[string]string `json:"pushers,omitempty"`
	Base64  bool              `json:"base64,omitempty"` // whether all texts are base64, because one of them is not UTF-8
}

func (r record) line() line {
	isUTF8 := r.isUTF8()
	if !isUTF8 {
		r = r.converted(func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) })
	}
	return line{r.user, r.event, r.fields, !isUTF8}
}

func (l line) record() (r record, err error) {
	r = record{user: l.User, event: l.Event, fields: l.Pushers}
	if (r.event == nil) == (r.fields == nil) {
		return r, errors.New("want either push rules or pushers")
	}
	if l.Base64 {
		r = r.converted(func(text string) string {
			decoded, failed := base64.StdEncoding.DecodeString(text)
			err = errors.Join(err, failed)
			return string(decoded)
		})
	}
	return r, errors.Join(err, r.user.Validate())
}

type archive struct {
	zip     *gzip.Writer
	file    *os.File // nil for stdout
	records int64
}

func newArchive(to io.Writer, b *backend) (*archive, error) {
	a := &archive{zip: gzip.NewWriter(to)}
	return a, writeJSON(a.zip, archiveHeader{archiveFormat, time.Now().UTC().Format(time.RFC3339), b.servers.String(), b.keys.Prefix})
}

// createArchive begins an archive in a new file that only its owner can read. It fails if a file or link of this name
// exists.
func createArchive(name string, b *backend) (*archive, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	a, err := newArchive(file, b)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	a.file = file
	return a, nil
}

// add appends records to the archive; sync then writes them to disk.
func (a *archive) add(records ...record) error {
	for _, r := range records {
		if err := writeJSON(a.zip, r.line()); err != nil {
			return err
		}
	}
	a.records += int64(len(records))
	return nil
}

func (a *archive) sync() error { return errors.Join(a.zip.Flush(), a.file.Sync()) }

// end completes the archive, and closes its file, if any.
func (a *archive) end() error {
	err := a.zip.Close()
	if a.file != nil {
		err = errors.Join(err, a.file.Sync(), a.file.Close())
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

// maxLine is the maximum length of a line. It is enough for an event of 1 MiB with JSON escapes.
const maxLine = 64 << 20

// readArchive calls visit for each record. Only the end of an archive shows whether it is
// complete. Errors do not repeat a line's text.
func readArchive(from io.Reader, visit func(number int64, r record) error) (records int64, err error) {
	zip, err := gzip.NewReader(from)
	if err != nil {
		return 0, &damagedArchiveError{1, "not a gzip file"}
	}
	lines := bufio.NewScanner(zip)
	lines.Buffer(make([]byte, 1<<16), maxLine)
	number := int64(1)
	for ; err == nil && lines.Scan(); number++ {
		if number == 1 {
			err = checkHeader(lines.Bytes())
		} else {
			err = readRecord(lines.Bytes(), number, visit)
		}
	}
	switch failed := lines.Err(); { // a damaged file may end within a line
	case errors.Is(failed, io.ErrUnexpectedEOF) || err == nil && failed == nil && number == 1:
		return 0, &damagedArchiveError{number, "the end is missing"}
	case failed != nil:
		return 0, &damagedArchiveError{number, failed.Error()}
	case err != nil:
		return 0, err
	}
	return number - 2, nil
}

func readRecord(text []byte, number int64, visit func(int64, record) error) error {
	var l line
	err := strictUnmarshal(text, &l)
	if err == nil {
		var r record
		if r, err = l.record(); err == nil {
			return visit(number, r)
		}
	}
	return &damagedArchiveError{number, "not a record"}
}

// checkHeader ignores unknown members, which the header of another version may have.
func checkHeader(text []byte) error {
	var h archiveHeader
	if json.Unmarshal(text, &h) != nil || h.Format == 0 {
		return &damagedArchiveError{1, "not the header of an archive"}
	}
	if h.Format != archiveFormat {
		return fmt.Errorf("the archive has format %d, want %d: import it with its version of pushctl", h.Format, archiveFormat)
	}
	return nil
}
