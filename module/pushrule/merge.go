package pushrule

import "slices"

// MergeDefaults brings the set's server-default rules to the table, which is
// what [Defaults.For] returned for the user: each rule of the table takes its
// definition from there, and its enabled state and actions from the set where
// the set has it; default rules that the table does not have go, the legacy
// ones among them. The user's own rules stay, in their order, above the
// defaults; only .m.rule.master is above them. A second merge with the same
// table changes nothing.
func (s *Ruleset) MergeDefaults(table Ruleset) {
	doc := s.doc.canonicalized()
	for _, kind := range Kinds() {
		var merged []entry
		list, listed := doc.entryList(kind)
		for _, e := range list {
			if !e.isServerDefault() {
				merged = append(merged, e)
			}
		}
		for _, rule := range table.List(kind) {
			if _, e, found := doc.find(kind, rule.ID); found {
				old := e.rule(kind)
				rule.Enabled, rule.Actions, rule.Extra = old.Enabled, old.Actions, old.Extra
			}
			merged = append(merged, newEntry(kind, rule))
		}
		doc = doc.withList(listed, hoistMaster(merged))
	}
	s.doc = doc.withoutLegacy()
}

// IsCurrent reports whether [Ruleset.MergeDefaults] with the table would leave
// every rule as it is and where it is.
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

// isCurrent is [Ruleset.IsCurrent] for the rules of a kind: .m.rule.master comes
// first, then the user's rules, and then the defaults in the order of the table.
func isCurrent(kind Kind, list, want []entry) bool {
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

// isDefinedAs compares what a merge takes from the table.
func (e entry) isDefinedAs(other entry, kind Kind) bool {
	if e.text == other.text {
		return true
	}
	a, b := e.rule(kind), other.rule(kind)
	return a.ID == b.ID && a.Default == b.Default && a.Pattern == b.Pattern && slices.Equal(a.Conditions, b.Conditions)
}
