// Package strictjson reads JSON of strangers; its API may change at any time. Names
// match exactly and appear once, strings are valid UTF-8 without lone surrogates,
// nothing follows the value, and numbers are never interpreted, so that they keep every
// digit.
//
// [jsontext] says whether a text is such JSON; then it is walked through once, front to
// back, and values are handed out as parts of it. Errors are faults that name the
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
// read all the same, so that one may go on behind it. Of a text that is not JSON, or is
// more than one value, all that is read fails.
type Reader struct {
	walker Walker
	stack  []frame // the objects and arrays being read, for the paths in errors
	lost   error   // the error in the syntax
}

// Check reports whether text is one JSON value, read as strictly as a [Reader]
// reads it. The error names places and never repeats a value, which may be secret.
func Check(text string) error {
	if Valid(text) {
		return nil
	}
	decoder := jsontext.NewDecoder(strings.NewReader(text))
	if _, err := decoder.ReadValue(); err != nil {
		return syntaxFault(err)
	}
	if _, err := decoder.ReadToken(); err != nil {
		return syntaxFault(err)
	}
	return fault.New(fault.NotJSON, "Not valid JSON: more than one value")
}

// NewReader returns a reader at the start of text. Values it returns share
// text's memory.
func NewReader(text string) *Reader {
	return &Reader{walker: Walk(text), lost: Check(text)}
}

// Object reads an object and calls member for each name; member must read
// exactly the one value. Afterwards every name in required (at most 64) must
// have been seen, or the error names all that were not.
func (r *Reader) Object(member func(name string) error, required ...string) error {
	if err := r.expect("an object", '{'); err != nil {
		return err
	}
	r.push(frame{})
	var seen uint64
	for name := range r.walker.Object() {
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
	if err := r.expect("an array", '['); err != nil {
		return err
	}
	r.push(frame{array: true})
	for i := range r.walker.Array() {
		r.top().index = i
		if err := element(); err != nil {
			return err
		}
	}
	r.pop()
	return nil
}

// Value reads the next value of any kind and returns its text.
func (r *Reader) Value() (string, error) {
	if r.lost != nil {
		return "", r.lost
	}
	return r.walker.Skip(), nil
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
	if r.walker.Next() != 'n' {
		return false, nil
	}
	return true, r.Skip()
}

// String reads a string.
func (r *Reader) String() (string, error) {
	if err := r.expect("a string", '"'); err != nil {
		return "", err
	}
	return r.walker.String(), nil
}

// Bool reads a boolean.
func (r *Reader) Bool() (bool, error) {
	if err := r.expect("a boolean", 't', 'f'); err != nil {
		return false, err
	}
	return r.walker.Skip() == "true", nil
}

// Integer reads a number that fits an int64 and has neither fraction nor
// exponent.
func (r *Reader) Integer() (int64, error) {
	if err := r.expect("an integer", []byte("-0123456789")...); err != nil {
		return 0, err
	}
	path := r.Path()
	n, err := strconv.ParseInt(r.walker.Skip(), 10, 64)
	if err != nil {
		return 0, WrongShape(path, "an integer")
	}
	return n, nil
}

// IsObject reports whether the next value is an object.
func (r *Reader) IsObject() bool { return r.walker.Next() == '{' }

// IsArray reports whether the next value is an array.
func (r *Reader) IsArray() bool { return r.walker.Next() == '[' }

// IsString reports whether the next value is a string.
func (r *Reader) IsString() bool { return r.walker.Next() == '"' }

// IsBool reports whether the next value is true or false.
func (r *Reader) IsBool() bool {
	next := r.walker.Next()
	return next == 't' || next == 'f'
}

// Mismatch returns the error for a next value that is not what is wanted,
// "a string or an object", or the one in the syntax. It reads the value.
func (r *Reader) Mismatch(want string) error {
	path := r.Path()
	if err := r.Skip(); err != nil {
		return err
	}
	return WrongShape(path, want)
}

// expect returns an error if the next value does not begin with one of some bytes, or
// the text is not JSON.
func (r *Reader) expect(want string, starts ...byte) error {
	if r.lost != nil {
		return r.lost
	}
	if bytes.IndexByte(starts, r.walker.Next()) < 0 {
		return r.Mismatch(want)
	}
	return nil
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
func (r *Reader) Offset() int { return r.walker.Offset() }

// Since returns the text from offset to the end of the value read last.
func (r *Reader) Since(offset int) string { return r.walker.text[offset:r.walker.at] }
