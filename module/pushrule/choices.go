package pushrule

import (
	"slices"

	"github.com/pushfx/pushfx/module/strictjson"
)

// choicesMember is the member of a set that keeps what a user chose of the rules of
// features that are off. Its value is a list of rules without conditions: some clients
// go through all members of a set as lists of rules.
const choicesMember = "org.pushfx.features_off"

// choices returns the kept choices. A member that cannot be read has none.
func (d document) choices() (list []Rule) {
	for _, member := range d.extra() {
		if member.Name != choicesMember {
			continue
		}
		r := strictjson.NewReader(member.Value)
		err := r.Array(func() error {
			rule, err := readRule(r, Room)
			list = append(list, rule)
			return err
		})
		if err != nil {
			return nil
		}
	}
	return list
}

// withChoices returns the set with other kept choices than before.
func (d document) withChoices(before, after []Rule) document {
	if len(before) == 0 && len(after) == 0 {
		return d
	}
	extra := slices.DeleteFunc(d.extra(), func(m Member) bool { return m.Name == choicesMember })
	if len(after) > 0 {
		extra = append(extra, Member{Name: choicesMember, Value: string(appendChoices(nil, after))})
	}
	return d.withExtra(extra)
}

// appendChoices appends the choices as a list. The id is not the first member of a
// rule, so that the text has no [ruleStart] outside of the lists of the five kinds.
func appendChoices(dst []byte, choices []Rule) []byte {
	dst = append(dst, '[')
	for i, rule := range choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendBool(append(dst, `{"default":true,"enabled":`...), rule.Enabled)
		dst = strictjson.AppendString(strictjson.AppendMember(dst, "rule_id"), rule.ID)
		dst = AppendActions(strictjson.AppendMember(dst, "actions"), rule.Actions)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// choice returns the rule of the set with the user's settings for a default rule, or
// else the kept choice. A feature's rule is also found by its other id.
func (s *Ruleset) choice(kind Kind, id string, kept []Rule) (rule Rule, found bool) {
	ids := []string{id, otherID(id)}
	for _, id := range ids {
		if rule, found = s.Rule(kind, id); found && id != "" {
			return rule, true
		}
	}
	for _, id := range ids {
		if at := indexOf(kept, id); at >= 0 && id != "" {
			return kept[at], true
		}
	}
	return Rule{}, false
}

// choicesWithout returns what the user chose of rules that are in no table: the kept
// choices, and the changed rules of features that go.
func (s *Ruleset) choicesWithout(table Ruleset, kept []Rule) (choices []Rule) {
	for _, rule := range kept {
		if known, found := featureRules[rule.ID]; found && !table.hasEither(known) {
			choices = append(choices, rule)
		}
	}
	for _, kind := range Kinds() {
		for _, e := range s.doc.entries(kind) {
			known, found := featureRules[e.id]
			if !found || known.Kind != kind || table.hasEither(known) {
				continue
			}
			choices = slices.DeleteFunc(choices, func(r Rule) bool { return r.ID == known.ID || r.ID == known.stableID })
			if rule := e.rule(kind); !known.isDefault(rule) {
				choices = append(choices, rule)
			}
		}
	}
	return choices
}

// hasEither reports whether the set has a feature's rule, under one of its ids.
func (s *Ruleset) hasEither(rule featureRule) bool {
	_, unstable := s.Rule(rule.Kind, rule.ID)
	_, stable := s.Rule(rule.Kind, rule.stableID)
	return unstable || stable
}
