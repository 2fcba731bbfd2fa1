package strictjson

import (
	"bytes"
	"iter"
	"strings"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// Valid reports whether text is a single value of strict JSON.
func Valid(text string) bool {
	return jsontext.Value(unsafe.Slice(unsafe.StringData(text), len(text))).IsValid()
}

// Equal reports whether two JSON texts have the same value (RFC 8785), whatever their
// white space, escapes, forms of numbers and order of members.
func Equal(a, b string) bool {
	if a == b {
		return true
	}
	x, y := jsontext.Value(a), jsontext.Value(b)
	return x.Canonicalize() == nil && y.Canonicalize() == nil && bytes.Equal(x, y)
}

// Depth returns the nesting depth of arrays and objects. It can guard a parser: it
// reads each byte once, allocates nothing, and accepts invalid JSON.
func Depth(text string) int {
	depth, deepest := 0, 0
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// Walker walks a [Valid] text front to back, without checks. It allocates only for
// strings with escapes. In any other text, its results are meaningless, but it always
// ends. It is not safe for concurrent use.
type Walker struct {
	text string
	at   int // offset of the next value
}

// Walk returns a walker at the start of text.
func Walk(text string) Walker {
	w := Walker{text: text}
	w.space()
	return w
}

// Offset returns the offset of the next value in the text.
func (w *Walker) Offset() int { return w.at }

// Next returns the first byte of the next value, 0 at the end of the text.
func (w *Walker) Next() byte {
	if w.at < len(w.text) {
		return w.text[w.at]
	}
	return 0
}

// Skip reads the next value and returns its text.
func (w *Walker) Skip() string {
	start := w.at
	switch w.Next() {
	case '"':
		w.quoted()
	case '{', '[':
		w.nested()
	default:
		for w.at < len(w.text) && strings.IndexByte(",]} \t\r\n", w.text[w.at]) < 0 {
			w.at++
		}
		if w.at == start { // no value
			w.at = len(w.text)
		}
	}
	return w.text[start:w.at]
}

// String reads a string.
func (w *Walker) String() string { return unquote(w.Skip()) }

// Object reads an object and yields its names. It skips the values that the loop does
// not read.
func (w *Walker) Object() iter.Seq[string] {
	return func(yield func(string) bool) {
		for w.enter(); w.Next() == '"'; w.separator() {
			name := w.String()
			w.separator() // colon
			if start := w.at; !yield(name) {
				return
			} else if w.at == start {
				w.Skip()
			}
		}
		w.leave()
	}
}

// Array reads an array and yields the index of each element before the element is read.
// It skips the elements that the loop does not read.
func (w *Walker) Array() iter.Seq[int] {
	return func(yield func(int) bool) {
		i := 0
		for w.enter(); w.Next() != ']' && w.at < len(w.text); w.separator() {
			if start := w.at; !yield(i) {
				return
			} else if w.at == start {
				w.Skip()
			}
			i++
		}
		w.leave()
	}
}

func (w *Walker) enter() {
	w.at = min(w.at+1, len(w.text))
	w.space()
}

func (w *Walker) leave() { w.at = min(w.at+1, len(w.text)) }

func (w *Walker) separator() {
	w.space()
	if next := w.Next(); next == ',' || next == ':' {
		w.at++
		w.space()
	}
}

func (w *Walker) space() {
	for w.at < len(w.text) && (w.text[w.at] == ' ' || w.text[w.at] == '\n' || w.text[w.at] == '\r' || w.text[w.at] == '\t') {
		w.at++
	}
}

func (w *Walker) quoted() { w.at = endOfString(w.text, w.at) }

func endOfString(text string, start int) int {
	for i := start + 1; ; {
		quote := strings.IndexByte(text[min(i, len(text)):], '"')
		if quote < 0 {
			return len(text)
		}
		quote += i
		if !isEscaped(text[i:quote]) {
			return quote + 1
		}
		i = quote + 1
	}
}

// isEscaped reports whether the backslashes at the end of part escape the next
// character.
func isEscaped(part string) bool {
	escaped := false
	for i := len(part) - 1; i >= 0 && part[i] == '\\'; i-- {
		escaped = !escaped
	}
	return escaped
}

// nested moves past an object or array. Setting one bit turns a bracket into a brace.
func (w *Walker) nested() {
	const either = 0x20
	text, depth := w.text, 0
	for i := w.at; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			i = endOfString(text, i) - 1
		case c|either == '{':
			depth++
		case c|either == '}':
			if depth--; depth == 0 {
				w.at = i + 1
				return
			}
		}
	}
	w.at = len(text)
}

// unquote decodes a quoted string. Without escapes, the result shares its memory.
func unquote(quoted string) string {
	if n := len(quoted); n >= 2 && strings.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : n-1]
	}
	s, _ := jsontext.AppendUnquote(nil, quoted)
	return string(s)
}
