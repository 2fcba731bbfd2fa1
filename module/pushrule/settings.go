package pushrule

import (
	"slices"

	"github.com/pushfx/pushfx/module/strictjson"
)

// settingsMember keeps the user's settings for rules of disabled features. Its value is
// a list of rules, because some clients read all members of a set as lists of rules.
const settingsMember = "org.pushfx.features_off"

// keptSettings returns the rules in [settingsMember], none if the member is unreadable.
func (d document) keptSettings() (list []Rule) {
	for _, member := range d.extra() {
		if member.Name != settingsMember {
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

// withSettings returns the document with the list after as its kept settings. The list
// before has the present kept settings.
func (d document) withSettings(before, after []Rule) document {
	if len(before) == 0 && len(after) == 0 {
		return d
	}
	extra := slices.DeleteFunc(d.extra(), func(m Member) bool { return m.Name == settingsMember })
	if len(after) > 0 {
		extra = append(extra, Member{Name: settingsMember, Value: string(appendSettings(nil, after))})
	}
	return d.withExtra(extra)
}

// appendSettings appends the kept settings. It does not write the id first, so that the
// text contains no [ruleStart].
func appendSettings(dst []byte, settings []Rule) []byte {
	dst = append(dst, '[')
	for i, rule := range settings {
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

// userSettings returns the user's settings for a default rule: from the set, or else
// from the settings in kept. It also looks for the other id of a feature's rule.
func (s *Ruleset) userSettings(kind Kind, id string, kept []Rule) (rule Rule, found bool) {
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

// settingsWithout returns the user's settings for rules that the table lacks: the
// settings in kept, and the changed rules of disabled features.
func (s *Ruleset) settingsWithout(table Ruleset, kept []Rule) (settings []Rule) {
	for _, rule := range kept {
		if known, found := featureRules[rule.ID]; found && !table.hasEither(known) {
			settings = append(settings, rule)
		}
	}
	for _, kind := range Kinds() {
		for _, e := range s.doc.entries(kind) {
			known, found := featureRules[e.id]
			if !found || known.Kind != kind || table.hasEither(known) {
				continue
			}
			settings = slices.DeleteFunc(settings, func(r Rule) bool { return r.ID == known.ID || r.ID == known.stableID })
			if rule := e.rule(kind); !known.isDefault(rule) {
				settings = append(settings, rule)
			}
		}
	}
	return settings
}

func (s *Ruleset) hasEither(rule featureRule) bool {
	_, unstable := s.Rule(rule.Kind, rule.ID)
	_, stable := s.Rule(rule.Kind, rule.stableID)
	return unstable || stable
}
