package pushrule

import (
	"slices"
	"strings"

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

// rule returns the rule, of a kind. The text was read or written before, so it has no
// errors.
func (e entry) rule(kind Kind) Rule {
	rule, _ := readRule(strictjson.NewReader(e.text), kind)
	return rule
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

// isServerDefault reports whether the rule belongs to the server.
func (e entry) isServerDefault() bool { return isReserved(e.id) }

// ruleID returns the id in the text of a rule, where it usually comes first.
func ruleID(text string) string {
	if rest, usual := strings.CutPrefix(text, ruleStart); usual {
		id, _, _ := strings.Cut(rest, `"`)
		if strings.IndexByte(id, '\\') < 0 {
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

func indexOfEntry(list []entry, id string) int {
	return slices.IndexFunc(list, func(e entry) bool { return e.id == id })
}
