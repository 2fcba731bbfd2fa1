package pushrule

import (
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

type ruleText struct {
	id   string
	text string
}

func newEntry(kind Kind, rule Rule) ruleText {
	return ruleText{rule.ID, string(rule.AppendJSON(nil, kind))}
}

// rule parses the entry. It ignores errors, because the text was checked before.
func (e ruleText) rule(kind Kind) Rule {
	rule, _ := readRule(strictjson.NewReader(e.text), kind)
	return rule
}

func (e ruleText) member(name string) (at span) {
	w := strictjson.Walk(e.text)
	for member := range w.Object() {
		if member == name {
			start := w.Offset()
			return span{start, start + len(w.Skip())}
		}
	}
	return span{}
}

func (e ruleText) flag(name string) bool {
	at := e.member(name)
	return e.text[at.start:at.end] == "true"
}

func (e ruleText) isServerDefault() bool { return isReserved(e.id) }

// ruleID is fast if the id is the first member.
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

func indexOfEntry(list []ruleText, id string) int {
	return slices.IndexFunc(list, func(e ruleText) bool { return e.id == id })
}
