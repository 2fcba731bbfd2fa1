package pushrule

import (
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/strictjson"
)

// document is the JSON text of a rule set, already checked by [readLists] or written by
// [lists.document].
//
// A canonical text is the exact output of [lists.document], in which [ruleStart] and
// [listStart] occur only at the start of a rule or list, so a byte search finds its
// rules. Any other text is parsed for reading, and rewritten before a change.
//
// Only this file and [FromCanonical] set the fields. The zero value is the empty set.
type document struct {
	text      string
	canonical bool
	legacy    bool // may have a legacy rule (see [IsLegacy]); kept, because a search takes longer than serving the set
}

const emptySet = `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}`

// ruleStart begins every rule of a canonical text, and listStart every list. Both
// contain unescaped quotes, so they cannot occur inside a JSON string.
const ruleStart = `{"rule_id":"`

func listStart(kind Kind) string { return `"` + string(kind) + `":[` }

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

// hasStartsOnlyWhereTheyBelong reports whether [ruleStart] and [listStart] occur in an
// output of [lists.document] exactly as often as rules and lists.
func hasStartsOnlyWhereTheyBelong(text string, rules int) bool {
	for _, kind := range Kinds() {
		if strings.Count(text, listStart(kind)) != 1 {
			return false
		}
	}
	return strings.Count(text, ruleStart) == rules
}

type lists [kindCount][]Rule

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

// readDocument reads a rule set and notes whether its text is canonical.
func readDocument(r *strictjson.Reader) (document, error) {
	start := r.Offset()
	l, extra, err := readLists(r)
	if err != nil {
		return document{}, err
	}
	text, written := r.Since(start), l.document(extra)
	return document{text, written.canonical && written.text == text, written.legacy}, nil
}

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

func (d document) extra() (extra []Member) {
	w := strictjson.Walk(d.text)
	for name := range w.Object() {
		if !Kind(name).Valid() {
			extra = append(extra, Member{Name: name, Value: w.Skip()})
		}
	}
	return extra
}

func (d document) withExtra(extra []Member) document {
	return d.lists().document(extra)
}

type span struct{ start, end int }

// list returns a walker at the list of a kind, and the offset of the walker's text in
// d.text. An absent list is empty.
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

func (d document) entries(kind Kind) iter.Seq2[span, ruleText] {
	return func(yield func(span, ruleText) bool) {
		w, before := d.list(kind)
		for range w.Array() {
			start := before + w.Offset()
			text := w.Skip()
			if !yield(span{start, start + len(text)}, ruleText{id: ruleID(text), text: text}) {
				return
			}
		}
	}
}

func (d document) entryList(kind Kind) (list []ruleText, at span) {
	w, before := d.list(kind)
	at.start = before + w.Offset()
	for range w.Array() {
		text := w.Skip()
		list = append(list, ruleText{id: ruleID(text), text: text})
	}
	at.end = before + w.Offset()
	return list, at
}

// find returns a rule and its position. It finds no rule for an id with invalid UTF-8,
// which JSON would change.
func (d document) find(kind Kind, id string) (at span, e ruleText, found bool) {
	switch {
	case !kind.Valid() || !utf8.ValidString(id):
		return span{}, ruleText{}, false
	case d.canonical:
		return d.search(d.firstRule(kind), kind, id)
	}
	for at, e := range d.entries(kind) {
		if e.id == id {
			return at, e, true
		}
	}
	return span{}, ruleText{}, false
}

// firstRule returns the position of the first rule in a canonical text, or the end of
// an empty list.
func (d document) firstRule(kind Kind) int {
	_, behind, _ := strings.Cut(d.text, listStart(kind))
	return len(d.text) - len(behind)
}

// search does the work of find in a canonical text, from a position in the kind's list.
func (d document) search(from int, kind Kind, id string) (at span, e ruleText, found bool) {
	start := strictjson.AppendString([]byte(strings.TrimSuffix(ruleStart, `"`)), id)
	i := strings.Index(d.text[from:], string(start))
	if i < 0 {
		return span{}, ruleText{}, false
	}
	if next := kind.index() + 1; next < kindCount && !d.isBefore(from, from+i, listStart(Kinds()[next])) {
		return span{}, ruleText{}, false // the rule is of another kind
	}
	w := strictjson.Walk(d.text[from+i:])
	e = ruleText{id: id, text: w.Skip()}
	return span{from + i, from + i + len(e.text)}, e, true
}

// isBefore reports whether the offset place is before the text part, which occurs once
// after the offset from. It searches the shorter side of place.
func (d document) isBefore(from, place int, part string) bool {
	if place-from < len(d.text)-place {
		return !strings.Contains(d.text[from:place], part)
	}
	return strings.Contains(d.text[place:], part)
}

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

func (d document) withValue(at span, value string) document {
	return d.splice(at, value, hasStart(value))
}

func (d document) withRule(at span, rule ruleText, behind string) document {
	return d.splice(at, rule.text+behind, hasStart(rule.text[len(ruleStart):]))
}

// splice replaces a part of the text. The text is no longer canonical if the new part
// has a [ruleStart] or [listStart] where no rule or list begins.
func (d document) splice(at span, part string, hasMisplacedStart bool) document {
	d.text = d.text[:at.start] + part + d.text[at.end:]
	d.canonical = d.canonical && !hasMisplacedStart
	return d
}

func (d document) withList(at span, list []ruleText) document {
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

func (d document) withoutLegacy() document {
	d.legacy = false
	return d
}
