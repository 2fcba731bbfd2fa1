package pushrule

import (
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// ruleStart is how the service begins the text of a rule, before its id.
const ruleStart = `{"rule_id":`

// isPlain reports whether the rules of a set, whose kinds are in order and which
// has so many of them, can be found by their bytes: the names of the kinds and
// of the member rule_id stand nowhere but where they belong, in the form in which
// the service writes them, and no id has escapes. A string never looks like one
// of them with what follows, because its quotes are escaped.
func isPlain(text string, rules int) bool {
	if strings.Count(text, `"rule_id"`) != rules || countPlainIDs(text) != rules {
		return false
	}
	for _, kind := range Kinds() {
		if strings.Count(text, listStart(kind)) != 1 {
			return false
		}
	}
	return true
}

// countPlainIDs counts the rules that begin as the service writes them.
func countPlainIDs(text string) (n int) {
	for {
		_, rest, found := strings.Cut(text, ruleStart+`"`)
		if !found {
			return n
		}
		id, _, _ := strings.Cut(rest, `"`)
		if !hasEscapes(id) {
			n++
		}
		text = rest
	}
}

// isPlainRule reports whether a plain set stays so with a rule.
func isPlainRule(text string) bool {
	rest, begins := strings.CutPrefix(text, ruleStart+`"`)
	id, rest, _ := strings.Cut(rest, `"`)
	return begins && !hasEscapes(id) && isPlainPart(rest)
}

// isPlainPart reports whether a plain set stays so with a part of a rule.
func isPlainPart(text string) bool {
	if strings.Contains(text, `"rule_id"`) {
		return false
	}
	for _, kind := range Kinds() {
		if strings.Contains(text, listStart(kind)) {
			return false
		}
	}
	return true
}

// listStart is how the service begins the list of a kind.
func listStart(kind Kind) string { return `"` + string(kind) + `":[` }

// plainList returns where the list of a kind begins in a plain set, behind its
// bracket.
func (s *Ruleset) plainList(kind Kind) int {
	start := listStart(kind)
	return strings.Index(s.text, start) + len(start)
}

// findPlain is find in a plain set.
func (s *Ruleset) findPlain(kind Kind, id string) (at span, e entry, found bool) {
	if !kind.Valid() {
		return span{}, entry{}, false
	}
	if at.start = s.indexPlain(s.plainList(kind), kind, id); at.start < 0 {
		return span{}, entry{}, false
	}
	w := strictjson.Walk(s.text[at.start:])
	e = entry{id, w.Skip()}
	return span{at.start, at.start + len(e.text)}, e, true
}

// indexPlain returns where the next rule with an id is, from a place in the list
// of its kind on; -1 where there is none.
func (s *Ruleset) indexPlain(from int, kind Kind, id string) int {
	i := strings.Index(s.text[from:], string(strictjson.AppendString([]byte(ruleStart), id)))
	if i < 0 {
		return -1
	}
	if next := kind.index() + 1; next < kindCount && !s.isBefore(from, from+i, listStart(Kinds()[next])) {
		return -1 // it is of another kind
	}
	return from + i
}

// isBefore reports whether a place comes before a part of the text that there is
// once, from a place on. It looks on the side where there is less to look at.
func (s *Ruleset) isBefore(from, place int, part string) bool {
	if place-from < len(s.text)-place {
		return !strings.Contains(s.text[from:place], part)
	}
	return strings.Contains(s.text[place:], part)
}
