package pushrule

import (
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/strictjson"
)

// entry is a rule as the text of its set has it.
type entry struct {
	id   string
	text string
}

// newEntry makes a rule an entry.
func newEntry(kind Kind, rule Rule) entry {
	return entry{rule.ID, string(rule.AppendJSON(nil, kind))}
}

// rule returns the rule, of a kind.
func (e entry) rule(kind Kind) (rule Rule) {
	w := strictjson.Walk(e.text)
	for name := range w.Object() {
		switch {
		case name == "rule_id":
			rule.ID = w.String()
		case name == "default":
			rule.Default = w.Next() == 't'
		case name == "enabled":
			rule.Enabled = w.Next() == 't'
		case name == "actions":
			rule.Actions = elements[Action](&w)
		case name == "conditions" && kind.HasConditions():
			rule.Conditions = elements[Condition](&w)
		case name == "pattern" && kind.HasPattern():
			rule.Pattern = w.String()
		default:
			rule.Extra = append(rule.Extra, Member{Name: name, Value: w.Skip()})
		}
	}
	return rule
}

// elements returns the texts of the elements of an array.
func elements[T ~string](w *strictjson.Walker) []T {
	list := []T{}
	for range w.Array() {
		list = append(list, T(w.Skip()))
	}
	return list
}

// member returns where in the text of the rule the value of a member is.
func (e entry) member(name string) (at span) {
	w := strictjson.Walk(e.text)
	for member := range w.Object() {
		if member == name {
			start := w.Offset()
			return span{start, start + len(w.Skip())}
		}
	}
	return span{}
}

// flag returns a boolean of the rule.
func (e entry) flag(name string) bool {
	at := e.member(name)
	return e.text[at.start:at.end] == "true"
}

// isServerDefault is [Rule.IsServerDefault].
func (e entry) isServerDefault() bool { return isReserved(e.id) }

// ruleID returns the id in the text of a rule, where it usually comes first.
func ruleID(text string) string {
	if rest, usual := strings.CutPrefix(text, `{"rule_id":"`); usual {
		id, _, _ := strings.Cut(rest, `"`)
		if !hasEscapes(id) {
			return id
		}
	}
	w := strictjson.Walk(text)
	for name := range w.Object() {
		if name == "rule_id" {
			return w.String()
		}
	}
	return ""
}

// span is a part of the text of a set.
type span struct{ start, end int }

// entries returns the rules of a kind with their places in the text of the set.
func (s *Ruleset) entries(kind Kind) iter.Seq2[span, entry] {
	return func(yield func(span, entry) bool) {
		w, before := s.list(kind)
		for range w.Array() {
			start := before + w.Offset()
			text := w.Skip()
			if !yield(span{start, start + len(text)}, entry{ruleID(text), text}) {
				return
			}
		}
	}
}

// list returns a walker at the list of a kind, and what comes before the
// walker's text. An absent list is an empty one.
func (s *Ruleset) list(kind Kind) (w strictjson.Walker, before int) {
	if s.plain && kind.Valid() {
		before = s.plainList(kind) - len("[")
		return strictjson.Walk(s.text[before:]), before
	}
	w = strictjson.Walk(s.text)
	if s.text == "" || !enterList(&w, kind) {
		return strictjson.Walk("[]"), 0
	}
	return w, 0
}

// enterList goes to the list of a kind.
func enterList(w *strictjson.Walker, kind Kind) (found bool) {
	for name := range w.Object() {
		if Kind(name) == kind {
			return kind.Valid()
		}
	}
	return false
}

// find returns the rule of a kind and id, and its place. No rule has an id that
// is not UTF-8; written as JSON, it would become another.
func (s *Ruleset) find(kind Kind, id string) (at span, e entry, found bool) {
	if !utf8.ValidString(id) {
		return span{}, entry{}, false
	}
	if s.plain {
		return s.findPlain(kind, id)
	}
	for at, e := range s.entries(kind) {
		if e.id == id {
			return at, e, true
		}
	}
	return span{}, entry{}, false
}

// mayHave reports whether the set may hold a rule with an id. It only looks
// whether the id stands anywhere.
func (s *Ruleset) mayHave(id string) bool {
	return hasEscapes(s.text) || strings.Contains(s.text, `"`+id+`"`)
}

func hasEscapes(text string) bool { return strings.IndexByte(text, '\\') >= 0 }

// hasID reports whether the set holds a rule, of any kind, with such an id.
func (s *Ruleset) hasID(such func(id string) bool) bool {
	for _, kind := range Kinds() {
		for _, e := range s.entries(kind) {
			if such(e.id) {
				return true
			}
		}
	}
	return false
}

// entryList returns the rules of a kind, for a change, and where their list is.
func (s *Ruleset) entryList(kind Kind) (list []entry, at span) {
	w, before := s.list(kind)
	at.start = before + w.Offset()
	for range w.Array() {
		text := w.Skip()
		list = append(list, entry{ruleID(text), text})
	}
	at.end = before + w.Offset()
	return list, at
}

// tidy returns the set in the form in which the service writes it: all five
// kinds come first, in order, and each rule has what its kind has.
func (s *Ruleset) tidy() Ruleset {
	switch {
	case s.text == "":
		return Ruleset{text: emptySet, plain: true}
	case !s.loose:
		return *s
	}
	l, extra, _ := readLists(strictjson.NewReader(s.text)) // it was read before
	return l.ruleset(extra)
}

// splice replaces a part of the text of a tidy set. It stays plain if the new
// part is.
func (s *Ruleset) splice(at span, text string, plain bool) {
	s.text = s.text[:at.start] + text + s.text[at.end:]
	s.plain = s.plain && plain
}

// insertFirst makes a rule the first of a list that has others, and nowhere
// .m.rule.master, which must be above them.
func (s *Ruleset) insertFirst(kind Kind, rule entry) (done bool) {
	if _, _, found := s.find(kind, masterID); found {
		return false
	}
	for at := range s.entries(kind) {
		s.splice(span{at.start, at.start}, rule.text+",", isPlainRule(rule.text))
		return true
	}
	return false
}

// replace puts a rule in the place of the one with its id, where that is all
// that there is to do: nowhere a damaged set has something else to be mended.
func (s *Ruleset) replace(kind Kind, id string, made func(enabled bool) entry) (done bool) {
	if !s.plain || kind == Override {
		return false
	}
	at, e, found := s.find(kind, id)
	if !found || s.indexPlain(at.end, kind, id) >= 0 {
		return false
	}
	if _, _, damaged := s.find(kind, masterID); damaged {
		return false
	}
	rule := made(e.flag("enabled"))
	s.splice(at, rule.text, isPlainRule(rule.text))
	return true
}

// setEntries puts a new list in the place of another in a tidy set.
func (s *Ruleset) setEntries(at span, list []entry) {
	size := len(s.text) - (at.end - at.start) + len("[]")
	for _, e := range list {
		size += len(e.text) + len(",")
	}
	var text strings.Builder
	text.Grow(size)
	text.WriteString(s.text[:at.start])
	text.WriteByte('[')
	for i, e := range list {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(e.text)
	}
	text.WriteByte(']')
	text.WriteString(s.text[at.end:])
	s.text = text.String()
}

func indexOfEntry(list []entry, id string) int {
	return slices.IndexFunc(list, func(e entry) bool { return e.id == id })
}
