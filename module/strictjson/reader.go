// Package strictjson reads untrusted JSON strictly; its API may change at any time. A
// text is a single value, names match exactly and are unique, strings are valid UTF-8
// without lone surrogates, and numbers keep every digit.
//
// [jsontext] validates a text; a reader then goes through the text once and returns
// values as parts of it. Errors are faults that name the field: [fault.NotJSON] for
// invalid JSON, [fault.BadJSON] for a wrong kind of value or a duplicate name,
// [fault.MissingParam] for missing fields.
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

// Member is an uninterpreted member of an object.
type Member struct {
	Name  string
	Value string // the original JSON text
}

// Reader reads one JSON text. It is not safe for concurrent use. If the next value is
// not the string, boolean or integer that a method expects, the method skips the value
// and returns an error; the caller may go on. If the text is invalid, all methods that
// read a value return an error.
type Reader struct {
	walker Walker
	stack  []frame // the open objects and arrays, for the paths in errors
	err    error   // why the text is invalid
}

// Check returns an error unless text is a single value of strict JSON. The error never
// repeats a value, which may be secret.
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

// NewReader returns a reader at the start of text. Its values share the text's memory.
func NewReader(text string) *Reader {
	return &Reader{walker: Walk(text), err: Check(text)}
}

// Object reads an object and calls member for each name; member must read exactly one
// value. The error names all missing required names; at most 64 can be required.
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
			missing = append(missing, r.memberPath(want))
		}
	}
	return Missing(missing...)
}

// Array reads an array and calls element for each element; element must read exactly
// one value.
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

// Value reads the next value, of any kind, and returns its text.
func (r *Reader) Value() (string, error) {
	if r.err != nil {
		return "", r.err
	}
	return r.walker.Skip(), nil
}

// Keep reads the next value and appends it to members.
func (r *Reader) Keep(members []Member, name string) ([]Member, error) {
	text, err := r.Value()
	return append(members, Member{Name: name, Value: text}), err
}

// Skip reads the next value and drops it.
func (r *Reader) Skip() error {
	_, err := r.Value()
	return err
}

// Null reads the next value only if it is null, and reports whether it was.
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

// Integer reads a number without fraction or exponent that fits into an int64.
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

// IsString reports whether the next value is a string.
func (r *Reader) IsString() bool { return r.walker.Next() == '"' }

// IsBool reports whether the next value is a boolean.
func (r *Reader) IsBool() bool {
	next := r.walker.Next()
	return next == 't' || next == 'f'
}

// Mismatch skips the next value and returns an error that names the expected kind, like
// "a string or an object". If the text is invalid, the error says so instead.
func (r *Reader) Mismatch(want string) error {
	path := r.Path()
	if err := r.Skip(); err != nil {
		return err
	}
	return WrongShape(path, want)
}

// expect returns an error unless the text is valid and the next value begins with one
// of the given bytes.
func (r *Reader) expect(want string, starts ...byte) error {
	if r.err != nil {
		return r.err
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

// Missing returns the fault that names missing fields.
func Missing(fields ...string) error {
	if len(fields) == 1 {
		return fault.New(fault.MissingParam, "Missing parameter: "+fields[0])
	}
	return fault.New(fault.MissingParam, "Missing parameters: "+strings.Join(fields, ", "))
}

// WrongShape returns the fault for a value of another kind than want, like "a string".
func WrongShape(path, want string) error {
	if path == "" {
		return fault.New(fault.BadJSON, "Must be "+want)
	}
	return fault.New(fault.BadJSON, shorten(path)+" must be "+want)
}

// Offset returns the offset of the next value in the text.
func (r *Reader) Offset() int { return r.walker.Offset() }

// Since returns the text from offset to the end of the last value.
func (r *Reader) Since(offset int) string { return r.walker.text[offset:r.walker.at] }
