package strictjson

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// frame is one object or array that is being read.
type frame struct {
	name  string // of the member that is being read, in an object
	index int    // of the element that is read next, in an array
	array bool
}

func (r *Reader) push(f frame) { r.stack = append(r.stack, f) }
func (r *Reader) pop()         { r.stack = r.stack[:len(r.stack)-1] }
func (r *Reader) top() *frame  { return &r.stack[len(r.stack)-1] }

// Path names the value that is read next, "rule.actions[0]"; it is empty at
// the start of the text.
func (r *Reader) Path() string {
	var b strings.Builder
	for _, f := range r.stack {
		switch {
		case f.array:
			b.WriteString("[" + strconv.Itoa(f.index) + "]")
		case b.Len() > 0:
			b.WriteString("." + f.name)
		default:
			b.WriteString(f.name)
		}
	}
	return b.String()
}

// Child names a member of the object that was read last.
func (r *Reader) Child(name string) string {
	if path := r.Path(); path != "" {
		return path + "." + name
	}
	return name
}

// dotted writes a JSON pointer the way [Reader.Path] writes paths. A member
// whose name is a number looks like an element.
func dotted(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		_, err := strconv.ParseUint(token, 10, 32)
		switch {
		case err == nil:
			b.WriteString("[" + token + "]")
		case b.Len() > 0:
			b.WriteString("." + token)
		default:
			b.WriteString(token)
		}
	}
	return b.String()
}

// shorten bounds what a client can make an error text repeat.
func shorten(path string) string {
	const limit = 128
	if len(path) <= limit {
		return path
	}
	cut := limit
	for !utf8.RuneStart(path[cut]) {
		cut--
	}
	return path[:cut] + "…"
}
