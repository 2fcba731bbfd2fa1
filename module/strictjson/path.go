package strictjson

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

type frame struct {
	name  string // the current member of an object
	index int    // the current element of an array
	array bool
}

func (r *Reader) push(f frame) { r.stack = append(r.stack, f) }
func (r *Reader) pop()         { r.stack = r.stack[:len(r.stack)-1] }
func (r *Reader) top() *frame  { return &r.stack[len(r.stack)-1] }

// Path returns the path of the next value, like "rule.actions[0]", or "" for the whole
// text.
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

func (r *Reader) memberPath(name string) string {
	if path := r.Path(); path != "" {
		return path + "." + name
	}
	return name
}

// dotted converts a JSON pointer to the form of [Reader.Path]. A numeric member name
// becomes an index like "[0]".
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
