package pushrule

import (
	"slices"

	"github.com/pushfx/pushfx/module/strictjson"
)

// choicesMember keeps the user's settings for rules of disabled features. Its value is
// a list of rules, because some clients read all members of a set as lists of rules.
const choicesMember = "org.pushfx.features_off"

// choices returns no choices if the member is unreadable.
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

// withChoices replaces the choices in the set, from before to after.
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

// appendChoices does not write the id first, so that the text contains no [ruleStart].
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

// choice returns the user's settings for a default rule: from the set, or else from
// kept. It also looks for the other id of a feature's rule.
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

// choicesWithout returns the user's settings for rules that the table lacks: kept, and
// the changed rules of disabled features.
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

func (s *Ruleset) hasEither(rule featureRule) bool {
	_, unstable := s.Rule(rule.Kind, rule.ID)
	_, stable := s.Rule(rule.Kind, rule.stableID)
	return unstable || stable
}
