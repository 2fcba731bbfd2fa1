package pushrule

import "slices"

// MergeDefaults replaces the server-default rules by the rules of the table, which is
// [Defaults.For] of the user. A rule keeps the user's enabled state and actions, also
// when a feature's rule gets its stable id. Default rules outside the table are
// removed. The user's own rules stay in order, below .m.rule.master and above all other
// defaults. A second merge changes nothing.
//
// If a rule is removed because its feature is off, the member org.pushfx.features_off
// keeps the user's settings for the rule until the feature is on again. Clients ignore
// the member.
func (s *Ruleset) MergeDefaults(table Ruleset) {
	doc := s.doc.canonicalized()
	old := Ruleset{doc}
	kept := doc.keptSettings()
	for _, kind := range Kinds() {
		var merged []ruleText
		list, listed := doc.entryList(kind)
		for _, e := range list {
			if !e.isServerDefault() {
				merged = append(merged, e)
			}
		}
		for _, rule := range table.List(kind) {
			if user, found := old.userSettings(kind, rule.ID, kept); found {
				rule.Enabled, rule.Actions, rule.Extra = user.Enabled, user.Actions, user.Extra
			}
			merged = append(merged, newEntry(kind, rule))
		}
		doc = doc.withList(listed, hoistMaster(merged))
	}
	s.doc = doc.withSettings(kept, old.settingsWithout(table, kept)).withoutLegacy()
}

// IsCurrent reports whether [Ruleset.MergeDefaults] would change no rule.
func (s *Ruleset) IsCurrent(table Ruleset) bool {
	for _, kind := range Kinds() {
		list, _ := s.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
		if !isCurrent(kind, list, want) {
			return false
		}
	}
	return true
}

// isCurrent reports whether a list has .m.rule.master, then the user's rules, then the
// other defaults in the order of the table.
func isCurrent(kind Kind, list, want []ruleText) bool {
	belowDefaults := false
	for _, e := range list {
		switch {
		case !e.isServerDefault():
			if belowDefaults {
				return false
			}
			continue
		case len(want) == 0 || !e.isDefinedAs(want[0], kind):
			return false
		case e.id != masterID:
			belowDefaults = true
		}
		want = want[1:]
	}
	return len(want) == 0 && indexOfEntry(list, masterID) <= 0
}

func (e ruleText) isDefinedAs(other ruleText, kind Kind) bool {
	if e.text == other.text {
		return true
	}
	a, b := e.rule(kind), other.rule(kind)
	return a.ID == b.ID && a.Default == b.Default && a.Pattern == b.Pattern && slices.Equal(a.Conditions, b.Conditions)
}
