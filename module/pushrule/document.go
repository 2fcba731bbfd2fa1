package pushrule

import (
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/strictjson"
)

// document is the JSON text of a rule set, with what was proved of it. The text
// was read by [readLists] or written by [lists.document], so that it may be
// walked through without looking for errors.
//
// A canonical text is in addition, byte for byte, what [lists.document] writes,
// and has the beginning of a list or of a rule nowhere but where one begins.
// Such a text can be searched for a rule by its bytes. In any other one, rules
// are found by walking through it, and it is written anew before a change.
//
// Only the functions of this file and [FromCanonical] set the fields. The zero value is
// the empty set.
type document struct {
	text      string
	canonical bool
	legacy    bool // it has, or had, a rule that [IsLegacy] names: to search a set of a megabyte takes longer than to serve it
}

// emptySet is the JSON of the zero Ruleset.
const emptySet = `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}`

// ruleStart begins every rule in a canonical text, and listStart every list. A
// string cannot hold either, because its quotes are escaped.
const ruleStart = `{"rule_id":"`

func listStart(kind Kind) string { return `"` + string(kind) + `":[` }

// hasStart reports whether a part of a text has the beginning of a list or of a
// rule.
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

// hasStartsOnlyWhereTheyBelong reports whether a text that [lists.document] has
// written holds the beginnings of its five lists and of its rules, and no more.
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

// document writes the set with these rules: all five kinds come first, in order,
// and each rule has what its kind has.
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

// readDocument reads a set, and compares its text with what the service would
// write of it.
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

// extra returns the members of the set that are not lists of rules.
func (d document) extra() (extra []Member) {
	w := strictjson.Walk(d.text)
	for name := range w.Object() {
		if !Kind(name).Valid() {
			extra = append(extra, Member{Name: name, Value: w.Skip()})
		}
	}
	return extra
}

// withExtra returns the set with other members that are not lists of rules.
func (d document) withExtra(extra []Member) document {
	return d.lists().document(extra)
}

// span is a part of the text of a set.
type span struct{ start, end int }

// list returns a walker at the list of a kind, and what comes before the
// walker's text. An absent list is an empty one.
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

// entries returns the rules of a kind with their places in the text.
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

// entryList returns the rules of a kind, for a change, and where their list is.
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

// find returns the rule of a kind and id, and its place. No rule has an id that
// is not UTF-8; written as JSON, it would become another.
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

// firstRule returns where the first rule of a kind is, or the end of its list, in
// a canonical text.
func (d document) firstRule(kind Kind) int {
	_, behind, _ := strings.Cut(d.text, listStart(kind))
	return len(d.text) - len(behind)
}

// search is find in a canonical text, from a place in the list of the kind on.
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

// isBefore reports whether a place comes before a part of the text that there is
// once, from a place on. It looks on the side where there is less to look at.
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

// withValue returns the set with another value of a member that every rule has.
func (d document) withValue(at span, value string) document {
	return d.splice(at, value, !hasStart(value))
}

// withRule returns the set with a rule that was made in the place of a part of a
// list. Behind is what follows the rule there.
func (d document) withRule(at span, rule entry, behind string) document {
	return d.splice(at, rule.text+behind, !hasStart(rule.text[len(ruleStart):]))
}

// splice replaces a part of the text. The set stays canonical if the new part
// adds no beginning that would be mistaken.
func (d document) splice(at span, part string, clear bool) document {
	d.text = d.text[:at.start] + part + d.text[at.end:]
	d.canonical = d.canonical && clear
	return d
}

// withList returns the set with a new list in place of another.
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

// withoutLegacy returns the set after its legacy rules have gone.
func (d document) withoutLegacy() document {
	d.legacy = false
	return d
}
