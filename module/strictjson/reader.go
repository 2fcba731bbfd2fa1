// Package strictjson reads JSON the way a server must read what strangers
// send: names match exactly and appear once, strings are valid UTF-8 without
// lone surrogates, nothing follows the value, and numbers are never
// interpreted, so that they keep every digit.
//
// It is a thin layer over [jsontext] that walks a text once, front to back,
// and hands out values as parts of that text. Errors are faults that name the
// field: [fault.NotJSON] for what is no JSON, [fault.BadJSON] for a wrong
// shape or a name given twice, [fault.MissingParam] for what is absent.
package strictjson

import (
	"bytes"
	"errors"
	"io"
	"math/bits"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pushfx/pushfx/module/fault"
)

// Member is one name and value of an object that is kept without being
// interpreted.
type Member struct {
	Name  string
	Value string // JSON text, as it came
}

// Reader walks one JSON text. It is not safe for concurrent use. Where a string,
// boolean or integer was asked for, a value of another kind is an error but is
// read all the same, so that one may go on behind it. After an error in the
// syntax all that is read fails with it.
type Reader struct {
	text  string
	dec   *jsontext.Decoder
	stack []frame // the objects and arrays being read, for the paths in errors
	lost  error   // the error in the syntax that was met
}

// Check reports whether text is one JSON value, read as strictly as a [Reader]
// reads it.
func Check(text string) error {
	if Valid(text) {
		return nil
	}
	r := NewReader(text)
	if err := r.Skip(); err != nil {
		return err
	}
	return r.End()
}

// NewReader returns a reader at the start of text. Values it returns share
// text's memory.
func NewReader(text string) *Reader {
	return &Reader{text: text, dec: jsontext.NewDecoder(bytes.NewBuffer([]byte(text)))}
}

// Object reads an object and calls member for each name; member must read
// exactly the one value. Afterwards every name in required (at most 64) must
// have been seen, or the error names all that were not.
func (r *Reader) Object(member func(name string) error, required ...string) error {
	if err := r.open('{', "an object"); err != nil {
		return err
	}
	r.push(frame{})
	var seen uint64
	for kind := r.dec.PeekKind(); kind != '}'; kind = r.dec.PeekKind() {
		if kind != '"' { // no name: its token is refused
			_, err := r.token()
			return err
		}
		name, err := r.unquoted()
		if err != nil {
			return err
		}
		r.top().name = name
		for i, want := range required {
			if name == want {
				seen |= 1 << i
			}
		}
		if err := member(name); err != nil {
			return err
		}
	}
	if _, err := r.token(); err != nil {
		return err
	}
	r.pop()
	if bits.OnesCount64(seen) == len(required) {
		return nil
	}
	var missing []string
	for i, want := range required {
		if seen&(1<<i) == 0 {
			missing = append(missing, r.Child(want))
		}
	}
	return Missing(missing...)
}

// Array reads an array and calls element before each element; element must
// read exactly the one value.
func (r *Reader) Array(element func() error) error {
	if err := r.open('[', "an array"); err != nil {
		return err
	}
	r.push(frame{array: true})
	for r.dec.PeekKind() != ']' {
		if err := element(); err != nil {
			return err
		}
		r.top().index++
	}
	if _, err := r.token(); err != nil {
		return err
	}
	r.pop()
	return nil
}

// Value reads the next value of any kind and returns its text.
func (r *Reader) Value() (string, error) {
	if r.lost != nil {
		return "", r.lost
	}
	v, err := r.dec.ReadValue()
	if err != nil {
		return "", r.syntax(err)
	}
	end := int(r.dec.InputOffset())
	return r.text[end-len(v) : end], nil
}

// Keep reads the next value and appends it to members, to be kept as it is.
func (r *Reader) Keep(members []Member, name string) ([]Member, error) {
	text, err := r.Value()
	return append(members, Member{Name: name, Value: text}), err
}

// Skip reads and drops the next value.
func (r *Reader) Skip() error {
	_, err := r.Value()
	return err
}

// Null reads the next value if it is null, and reports whether it was.
func (r *Reader) Null() (bool, error) {
	if r.dec.PeekKind() != 'n' {
		return false, nil
	}
	return true, r.Skip()
}

// String reads a string.
func (r *Reader) String() (string, error) {
	if err := r.expect("a string", '"'); err != nil {
		return "", err
	}
	return r.unquoted()
}

// unquoted reads a string or a name. Without escapes it is a part of the text
// and takes no memory of its own.
func (r *Reader) unquoted() (string, error) {
	quoted, err := r.Value()
	if err != nil || strings.IndexByte(quoted, '\\') < 0 {
		return strings.Trim(quoted, `"`), err
	}
	s, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return "", r.syntax(err)
	}
	return string(s), nil
}

// Bool reads a boolean.
func (r *Reader) Bool() (bool, error) {
	if err := r.expect("a boolean", 't', 'f'); err != nil {
		return false, err
	}
	token, err := r.token()
	if err != nil {
		return false, err
	}
	return token.Bool(), nil
}

// Integer reads a number that fits an int64 and has neither fraction nor
// exponent.
func (r *Reader) Integer() (int64, error) {
	if err := r.expect("an integer", '0'); err != nil {
		return 0, err
	}
	path := r.Path()
	text, err := r.Value()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, WrongShape(path, "an integer")
	}
	return n, nil
}

// IsObject reports whether the next value is an object.
func (r *Reader) IsObject() bool { return r.dec.PeekKind() == '{' }

// IsArray reports whether the next value is an array.
func (r *Reader) IsArray() bool { return r.dec.PeekKind() == '[' }

// IsString reports whether the next value is a string.
func (r *Reader) IsString() bool { return r.dec.PeekKind() == '"' }

// IsBool reports whether the next value is true or false.
func (r *Reader) IsBool() bool {
	kind := r.dec.PeekKind()
	return kind == 't' || kind == 'f'
}

// Mismatch returns the error for a next value that is not what is wanted,
// "a string or an object", or the syntax error that stands in its place. It
// reads the value.
func (r *Reader) Mismatch(want string) error {
	path := r.Path()
	if err := r.Skip(); err != nil {
		return err
	}
	return WrongShape(path, want)
}

// End reports an error when anything but white space follows the value.
func (r *Reader) End() error {
	if r.lost != nil {
		return r.lost
	}
	_, err := r.dec.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return r.syntax(err)
	}
	return fault.New(fault.NotJSON, "Not valid JSON: more than one value")
}

func (r *Reader) token() (jsontext.Token, error) {
	if r.lost != nil {
		return jsontext.Token{}, r.lost
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		return jsontext.Token{}, r.syntax(err)
	}
	return token, nil
}

func (r *Reader) open(kind jsontext.Kind, want string) error {
	if err := r.expect(want, kind); err != nil {
		return err
	}
	if _, err := r.token(); err != nil {
		return err
	}
	return nil
}

func (r *Reader) expect(want string, kinds ...jsontext.Kind) error {
	next := r.dec.PeekKind()
	for _, kind := range kinds {
		if next == kind {
			return nil
		}
	}
	return r.Mismatch(want)
}

// syntax turns a decoder's error into a fault, which is the error of all that
// is read afterwards too: the decoder is lost. The fault's text names places
// and never repeats a value, which may be secret.
func (r *Reader) syntax(err error) error {
	if r.lost == nil {
		r.lost = syntaxFault(err)
	}
	return r.lost
}

func syntaxFault(err error) error {
	var syntactic *jsontext.SyntacticError
	switch found := errors.As(err, &syntactic); {
	case found && errors.Is(err, jsontext.ErrDuplicateName):
		return fault.New(fault.BadJSON, "Key given twice: "+shorten(dotted(syntactic.JSONPointer)))
	case found && !errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(fault.NotJSON, "Not valid JSON: syntax error at byte "+strconv.FormatInt(syntactic.ByteOffset, 10))
	}
	return fault.New(fault.NotJSON, "Not valid JSON: unexpected end")
}

// Missing returns the fault that names absent fields.
func Missing(fields ...string) error {
	if len(fields) == 1 {
		return fault.New(fault.MissingParam, "Missing parameter: "+fields[0])
	}
	return fault.New(fault.MissingParam, "Missing parameters: "+strings.Join(fields, ", "))
}

// WrongShape returns the fault for a value that is not what is wanted, "a string".
func WrongShape(path, want string) error {
	if path == "" {
		return fault.New(fault.BadJSON, "Must be "+want)
	}
	return fault.New(fault.BadJSON, shorten(path)+" must be "+want)
}

// Offset returns where in the text the value that is read next begins.
func (r *Reader) Offset() int {
	offset := int(r.dec.InputOffset())
	for offset < len(r.text) && strings.IndexByte(" \t\r\n:,", r.text[offset]) >= 0 {
		offset++
	}
	return offset
}

// Since returns the text from offset to the end of the value read last.
func (r *Reader) Since(offset int) string { return r.text[offset:r.dec.InputOffset()] }
