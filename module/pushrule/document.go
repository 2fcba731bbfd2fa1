package pushrule

import (
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/strictjson"
)

// document is the JSON text of a rule set. [readLists] has read the text or
// [lists.document] has written it, so functions parse it without checks for errors.
//
// A canonical text is, byte for byte, the output of [lists.document], and [ruleStart]
// and [listStart] occur only at the start of a rule or a list. A search by bytes finds
// its rules. Any other text must be parsed, and is rewritten before a change.
//
// Only this file and [FromCanonical] set the fields. The zero value is the empty set.
type document struct {
	text      string
	canonical bool
	legacy    bool // may have a legacy rule; see [IsLegacy]. A search of a large set takes longer than serving it
}

// emptySet is the JSON of the zero Ruleset.
const emptySet = `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}`

// ruleStart begins every rule in a canonical text, and listStart every list. No JSON
// string contains them, because its quotes are escaped.
const ruleStart = `{"rule_id":"`

func listStart(kind Kind) string { return `"` + string(kind) + `":[` }

// hasStart reports whether a text contains the start of a list or a rule.
func hasStart(part string) bool {
	if strings.Contains(part, ruleStart) {
		return true
	}
	if !strings.Contains(part, ":[") {
		return false
	}
	for _, kind := range Kinds() {
		if strings.Contains(part, listStart(kind)) {
			return true
		}
	}
	return false
}

// hasStartsOnlyWhereTheyBelong reports whether an output of [lists.document] contains
// no more starts than its lists and rules have.
func hasStartsOnlyWhereTheyBelong(text string, rules int) bool {
	for _, kind := range Kinds() {
		if strings.Count(text, listStart(kind)) != 1 {
			return false
		}
	}
	return strings.Count(text, ruleStart) == rules
}

// lists are the rules of all kinds.
type lists [kindCount][]Rule

// document writes the set: first the five kinds in order, then the extra members.
func (l lists) document(extra []Member) document {
	text := []byte{'{'}
	var d document
	rules := 0
	for i, kind := range Kinds() {
		text = append(strictjson.AppendMember(text, string(kind)), '[')
		for j, rule := range l[i] {
			if j > 0 {
				text = append(text, ',')
			}
			text = rule.AppendJSON(text, kind)
			d.legacy = d.legacy || IsLegacy(rule.ID)
			rules++
		}
		text = append(text, ']')
	}
	d.text = string(append(strictjson.AppendMembers(text, extra), '}'))
	d.canonical = hasStartsOnlyWhereTheyBelong(d.text, rules)
	return d
}

// readDocument reads a set, and compares its text with the canonical one.
func readDocument(r *strictjson.Reader) (document, error) {
	start := r.Offset()
	l, extra, err := readLists(r)
	if err != nil {
		return document{}, err
	}
	text, written := r.Since(start), l.document(extra)
	return document{text, written.canonical && written.text == text, written.legacy}, nil
}

// canonicalized returns the set in the form in which the service writes it.
func (d document) canonicalized() document {
	switch {
	case d.text == "":
		return document{text: emptySet, canonical: true}
	case d.canonical:
		return d
	}
	return d.lists().document(d.extra())
}

func (d document) lists() (l lists) {
	for i, kind := range Kinds() {
		for _, e := range d.entries(kind) {
			l[i] = append(l[i], e.rule(kind))
		}
	}
	return l
}

// extra returns the members of the set except the five lists.
func (d document) extra() (extra []Member) {
	w := strictjson.Walk(d.text)
	for name := range w.Object() {
		if !Kind(name).Valid() {
			extra = append(extra, Member{Name: name, Value: w.Skip()})
		}
	}
	return extra
}

// withExtra returns the set with other members beyond the five lists.
func (d document) withExtra(extra []Member) document {
	return d.lists().document(extra)
}

// span is a part of the text of a set.
type span struct{ start, end int }

// list returns a walker at the list of a kind, and the offset of the walker's text.
// An absent list is empty.
func (d document) list(kind Kind) (w strictjson.Walker, before int) {
	if !kind.Valid() || d.text == "" {
		return strictjson.Walk("[]"), 0
	}
	if d.canonical {
		before = d.firstRule(kind) - len("[")
		return strictjson.Walk(d.text[before:]), before
	}
	w = strictjson.Walk(d.text)
	for name := range w.Object() {
		if Kind(name) == kind {
			return w, 0
		}
	}
	return strictjson.Walk("[]"), 0
}

// entries returns the rules of a kind with their positions in the text.
func (d document) entries(kind Kind) iter.Seq2[span, entry] {
	return func(yield func(span, entry) bool) {
		w, before := d.list(kind)
		for range w.Array() {
			start := before + w.Offset()
			text := w.Skip()
			if !yield(span{start, start + len(text)}, entry{id: ruleID(text), text: text}) {
				return
			}
		}
	}
}

// entryList returns the rules of a kind, and the position of their list.
func (d document) entryList(kind Kind) (list []entry, at span) {
	w, before := d.list(kind)
	at.start = before + w.Offset()
	for range w.Array() {
		text := w.Skip()
		list = append(list, entry{id: ruleID(text), text: text})
	}
	at.end = before + w.Offset()
	return list, at
}

// find returns the rule of a kind and id, and its position. An id that is not UTF-8
// finds no rule, since writing it as JSON would change it.
func (d document) find(kind Kind, id string) (at span, e entry, found bool) {
	switch {
	case !kind.Valid() || !utf8.ValidString(id):
		return span{}, entry{}, false
	case d.canonical:
		return d.search(d.firstRule(kind), kind, id)
	}
	for at, e := range d.entries(kind) {
		if e.id == id {
			return at, e, true
		}
	}
	return span{}, entry{}, false
}

// firstRule returns the position of the first rule of a kind in a canonical text, or
// the end of the list if it is empty.
func (d document) firstRule(kind Kind) int {
	_, behind, _ := strings.Cut(d.text, listStart(kind))
	return len(d.text) - len(behind)
}

// search is find in a canonical text, from a position in the list of the kind.
func (d document) search(from int, kind Kind, id string) (at span, e entry, found bool) {
	start := strictjson.AppendString([]byte(strings.TrimSuffix(ruleStart, `"`)), id)
	i := strings.Index(d.text[from:], string(start))
	if i < 0 {
		return span{}, entry{}, false
	}
	if next := kind.index() + 1; next < kindCount && !d.isBefore(from, from+i, listStart(Kinds()[next])) {
		return span{}, entry{}, false // the rule is of another kind
	}
	w := strictjson.Walk(d.text[from+i:])
	e = entry{id: id, text: w.Skip()}
	return span{from + i, from + i + len(e.text)}, e, true
}

// isBefore reports whether a position comes before part, which occurs once after from.
// It searches the shorter side.
func (d document) isBefore(from, place int, part string) bool {
	if place-from < len(d.text)-place {
		return !strings.Contains(d.text[from:place], part)
	}
	return strings.Contains(d.text[place:], part)
}

// len returns the number of rules of all kinds.
func (d document) len() (n int) {
	if d.canonical {
		return strings.Count(d.text, ruleStart)
	}
	for _, kind := range Kinds() {
		for range d.entries(kind) {
			n++
		}
	}
	return n
}

// withValue returns the set with another value of a rule's member.
func (d document) withValue(at span, value string) document {
	return d.splice(at, value, !hasStart(value))
}

// withRule returns the set with a rule instead of a part of a list. Behind is the text
// that follows the rule.
func (d document) withRule(at span, rule entry, behind string) document {
	return d.splice(at, rule.text+behind, !hasStart(rule.text[len(ruleStart):]))
}

// splice replaces a part of the text. A canonical set stays canonical if clear is true:
// the new part contains no misleading start of a rule or list.
func (d document) splice(at span, part string, clear bool) document {
	d.text = d.text[:at.start] + part + d.text[at.end:]
	d.canonical = d.canonical && clear
	return d
}

// withList returns the set with another list.
func (d document) withList(at span, list []entry) document {
	size := len(d.text) - (at.end - at.start) + len("[]")
	for _, e := range list {
		size += len(e.text) + len(",")
	}
	var text strings.Builder
	text.Grow(size)
	text.WriteString(d.text[:at.start])
	text.WriteByte('[')
	for i, e := range list {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(e.text)
		d.canonical = d.canonical && !hasStart(strings.TrimPrefix(e.text, ruleStart))
	}
	text.WriteByte(']')
	text.WriteString(d.text[at.end:])
	d.text = text.String()
	return d
}

// withoutLegacy returns the set after its legacy rules were removed.
func (d document) withoutLegacy() document {
	d.legacy = false
	return d
}
