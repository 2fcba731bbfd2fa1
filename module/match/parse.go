package match

import (
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/strictjson"
)

// parser reads the text of an event once, front to back. It checks the text as
// strictly as [strictjson.Valid] while it takes the properties out of it.
type parser struct {
	text   string
	at     int // what is read next
	depth  int // of objects and arrays around it
	failed bool
	event  *Event
}

// maxDepth is how deep objects and arrays may nest, as in strictjson.
const maxDepth = 10_000

// fail ends the reading: nothing follows.
func (p *parser) fail() { p.failed, p.at = true, len(p.text) }

// space goes over white space and returns the byte that follows, 0 at the end.
func (p *parser) space() byte {
	for ; p.at < len(p.text); p.at++ {
		if c := p.text[p.at]; c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c
		}
	}
	return 0
}

// document reads the whole text, one object.
func (p *parser) document() (ok bool) {
	if p.space() != '{' {
		return false
	}
	p.object(absent, slotEvent)
	p.space()
	return !p.failed && p.at == len(p.text)
}

// enter goes into an object or array. It returns false if that is empty.
func (p *parser) enter(end byte) bool {
	p.at++
	if p.depth++; p.depth > maxDepth {
		p.fail()
	}
	if p.space() == end {
		p.at++
		p.depth--
		return false
	}
	return !p.failed
}

// more goes behind a member or element. It returns false if that was the last.
func (p *parser) more(end byte) bool {
	switch c := p.space(); {
	case c == ',':
		p.at++
		p.space()
		return true
	case c == end && !p.failed:
		p.at++
		p.depth--
	default:
		p.fail()
	}
	return false
}

// object reads an object and adds its members to the properties of the event.
func (p *parser) object(parent int32, parentSlot slot) {
	e := p.event
	members := members{event: e, last: absent}
	for more := p.enter('}'); more; more = p.more('}') {
		name := p.string()
		s := slotOf(parentSlot, name)
		if p.space() != ':' || members.has(name, s) {
			p.fail()
			return
		}
		p.at++
		at := int32(len(e.properties))
		e.properties = append(e.properties, property{name: name, parent: parent, before: members.last})
		members.add(at, s)
		p.member(at, s)
	}
}

// member reads the value of a property.
func (p *parser) member(at int32, s slot) {
	e := p.event
	switch p.space() {
	case '{':
		p.object(at, s)
	case '[':
		first := len(e.elements)
		p.array()
		e.properties[at].value = value{kind: array, number: int64(first)<<32 | int64(len(e.elements))}
		if len(e.elements)-first > manyElements {
			slices.SortFunc(e.elements[first:], value.compare)
		}
	default:
		e.properties[at].value = p.scalar()
	}
}

// members are the members of an object that were read so far.
type members struct {
	event *Event
	last  int32 // the last one
	count int
	names map[string]bool // of all without a slot, if there are many
}

// has reports whether there is a member with a name and its slot.
func (m *members) has(name string, s slot) bool {
	switch {
	case s != 0:
		return m.event.slots[s] != absent
	case m.names != nil:
		return m.names[name]
	}
	for at := m.last; at != absent; at = m.event.properties[at].before {
		if m.event.properties[at].name == name {
			return true
		}
	}
	return false
}

// add adds the property at a place.
func (m *members) add(at int32, s slot) {
	if s != 0 {
		m.event.slots[s] = at
	}
	m.last = at
	m.count++
	if m.names != nil {
		m.names[m.event.properties[at].name] = true
	} else if m.count > manyProperties {
		m.names = make(map[string]bool, 2*m.count)
		for ; at != absent; at = m.event.properties[at].before {
			m.names[m.event.properties[at].name] = true
		}
	}
}

// array reads an array and adds its scalars to the elements of the event.
func (p *parser) array() {
	e := p.event
	for more := p.enter(']'); more; more = p.more(']') {
		if c := p.space(); c == '{' || c == '[' {
			p.skip()
			continue
		}
		if v := p.scalar(); v.isScalar() {
			if e.elements == nil {
				e.elements = make([]value, 0, 8)
			}
			e.elements = append(e.elements, v)
		}
	}
}

// skip reads an object or array that no condition can ask for.
func (p *parser) skip() {
	w := strictjson.Walk(p.text[p.at:])
	nested := w.Skip()
	if !strictjson.Valid(nested) || strictjson.Depth(nested) > maxDepth-p.depth {
		p.fail()
		return
	}
	p.at += len(nested)
}

// scalar reads a value that is neither an object nor an array.
func (p *parser) scalar() value {
	switch c := p.space(); {
	case c == '"':
		return value{kind: textual, text: p.string()}
	case c == '-' || '0' <= c && c <= '9':
		return readNumber(p.number())
	case c == 't' && p.literal("true"):
		return value{kind: truth}
	case c == 'f' && p.literal("false"):
		return value{kind: falsehood}
	case c == 'n' && p.literal("null"):
		return value{kind: null}
	}
	p.fail()
	return value{}
}

func (p *parser) literal(text string) bool {
	if !strings.HasPrefix(p.text[p.at:], text) {
		return false
	}
	p.at += len(text)
	return true
}

// number reads a number.
func (p *parser) number() string {
	start := p.at
	p.oneOf("-")
	if !p.oneOf("0") && p.digits() == 0 {
		p.fail()
	}
	if p.oneOf(".") && p.digits() == 0 {
		p.fail()
	}
	if p.oneOf("eE") {
		p.oneOf("+-")
		if p.digits() == 0 {
			p.fail()
		}
	}
	return p.text[start:p.at]
}

// oneOf reads one of some bytes, if it is next.
func (p *parser) oneOf(list string) bool {
	if p.at < len(p.text) && strings.IndexByte(list, p.text[p.at]) >= 0 {
		p.at++
		return true
	}
	return false
}

// digits reads digits and returns how many.
func (p *parser) digits() int {
	start := p.at
	for p.at < len(p.text) && '0' <= p.text[p.at] && p.text[p.at] <= '9' {
		p.at++
	}
	return p.at - start
}

// plainBytes are the bytes that mean themselves in a string: ASCII without
// control characters, quotes and backslashes.
var plainBytes = newPlainBytes()

func newPlainBytes() (table [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		table[c] = c != '"' && c != '\\'
	}
	return table
}

// string reads a string. Without escapes it is a part of the text and takes no
// memory of its own.
func (p *parser) string() string {
	if p.at >= len(p.text) || p.text[p.at] != '"' {
		p.fail()
		return ""
	}
	start := p.at + 1
	ascii := true
	for i := start; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case plainBytes[c]:
		case c == '"':
			if s := p.text[start:i]; ascii || utf8.ValidString(s) {
				p.at = i + 1
				return s
			}
			p.fail()
			return ""
		case c == '\\':
			return p.escaped(start, i)
		case c >= utf8.RuneSelf:
			ascii = false
		default:
			p.fail()
			return ""
		}
	}
	p.fail()
	return ""
}

// escaped reads a string that begins at start and has its first escape at i.
func (p *parser) escaped(start, i int) string {
	end := endOfString(p.text, i)
	if end < 0 {
		p.fail()
		return ""
	}
	p.at = i
	s := append(make([]byte, 0, end-start), p.text[start:i]...)
	for p.at < end {
		c := p.text[p.at]
		switch {
		case c == '\\':
			s = p.escape(s)
			continue
		case c < ' ':
			p.fail()
			return ""
		}
		s = append(s, c)
		p.at++
	}
	if p.failed || !utf8.Valid(s) {
		p.fail()
		return ""
	}
	p.at++
	return asText(s)
}

// endOfString returns where the quote is that ends a string, from a place
// inside of it, -1 if there is none.
func endOfString(text string, at int) int {
	for ; at < len(text); at++ {
		switch text[at] {
		case '\\':
			at++
		case '"':
			return at
		}
	}
	return -1
}

// escape reads what a backslash begins and appends what it stands for.
func (p *parser) escape(dst []byte) []byte {
	const names, means = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	c := p.text[p.at+1]
	if i := strings.IndexByte(names, c); i >= 0 {
		p.at += 2
		return append(dst, means[i])
	}
	r := p.unit()
	if utf16.IsSurrogate(r) {
		r = utf16.DecodeRune(r, p.unit())
		if r == utf8.RuneError {
			p.fail()
		}
	}
	return utf8.AppendRune(dst, r)
}

// unit reads \u and four hexadecimal digits.
func (p *parser) unit() (r rune) {
	const digits = "0123456789abcdef"
	if !strings.HasPrefix(p.text[p.at:], `\u`) || p.at+6 > len(p.text) {
		p.fail()
		return 0
	}
	for _, c := range []byte(p.text[p.at+2 : p.at+6]) {
		if 'A' <= c && c <= 'F' {
			c += 'a' - 'A'
		}
		digit := strings.IndexByte(digits, c)
		if digit < 0 {
			p.fail()
			return 0
		}
		r = r<<4 | rune(digit)
	}
	p.at += 6
	return r
}
