package strictjson

import (
	"iter"
	"strings"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// Valid reports whether text is one JSON value, read as strictly as a [Reader]
// reads it.
func Valid(text string) bool {
	// The bytes are only looked at.
	return jsontext.Value(unsafe.Slice(unsafe.StringData(text), len(text))).IsValid()
}

// Walker walks a text that is [Valid], front to back, without looking for
// errors and without memory of its own: it is for texts that were checked
// before. With any other text what it finds means nothing, but it comes to an
// end. It is not safe for concurrent use.
type Walker struct {
	text string
	at   int // where the next value begins
}

// Walk returns a walker at the start of text.
func Walk(text string) Walker {
	w := Walker{text: text}
	w.space()
	return w
}

// Offset returns where in the text the next value begins.
func (w *Walker) Offset() int { return w.at }

// Next returns the first byte of the next value, 0 at the end.
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

// String reads the next value, a string.
func (w *Walker) String() string { return unquote(w.Skip()) }

// Object reads the next value, an object, and yields its names. Where the body
// does not read the value of a name, it is skipped.
func (w *Walker) Object() iter.Seq[string] {
	return func(yield func(string) bool) {
		for w.enter(); w.Next() == '"'; w.separator() {
			name := w.String()
			w.separator() // the colon
			if start := w.at; !yield(name) {
				return
			} else if w.at == start {
				w.Skip()
			}
		}
		w.leave()
	}
}

// Array reads the next value, an array, and yields for each element, which is
// then the next value. Where the body does not read it, it is skipped.
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

// enter goes behind an opening bracket.
func (w *Walker) enter() {
	w.at = min(w.at+1, len(w.text))
	w.space()
}

// leave goes behind a closing bracket.
func (w *Walker) leave() { w.at = min(w.at+1, len(w.text)) }

// separator goes behind a comma or a colon, if there is one.
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

// quoted goes behind a string.
func (w *Walker) quoted() { w.at = endOfString(w.text, w.at) }

// endOfString returns where the string ends that begins at start.
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

// isEscaped reports whether what follows a part of a string is escaped by the
// backslashes at its end.
func isEscaped(part string) bool {
	escaped := false
	for i := len(part) - 1; i >= 0 && part[i] == '\\'; i-- {
		escaped = !escaped
	}
	return escaped
}

// nested goes behind an object or array. In the bit that is set here, braces
// differ from brackets.
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

// unquote returns what a quoted string says. Without escapes it is a part of
// the text and takes no memory of its own.
func unquote(quoted string) string {
	if n := len(quoted); n >= 2 && strings.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : n-1]
	}
	s, _ := jsontext.AppendUnquote(nil, quoted)
	return string(s)
}
