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
	made bool // it is not from the text of a set
}

// newEntry makes a rule an entry.
func newEntry(kind Kind, rule Rule) entry {
	return entry{rule.ID, string(rule.AppendJSON(nil, kind)), true}
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
