package pushrule

import (
	"errors"
	"slices"
)

// Flaw is a way in which a set that can be read is not as the service keeps
// sets. The texts are for operators.
type Flaw string

// The flaws.
const (
	TwinRules      Flaw = "two rules of one id"
	MasterNotFirst Flaw = "master rule not first"
	LegacyRule     Flaw = "legacy rule"
	ForeignDefault Flaw = "default rule not in the table"
	StaleDefaults  Flaw = "defaults not current"
)

// Flaws lists every flaw that a set may have.
func Flaws() []Flaw {
	return []Flaw{TwinRules, MasterNotFirst, LegacyRule, ForeignDefault, StaleDefaults}
}

// The reasons for which [Ruleset.Mend] leaves a set alone.
var (
	ErrTwinsDiffer    = errors.New("two rules of one id differ, and both may be wanted")
	ErrForeignDefault = errors.New("a default rule is not in the table, and would be lost")
)

// Flaws returns in what the set is not as the service keeps sets, each once and
// in the order of the function [Flaws]. The table is what [Defaults.For]
// returned for the user. A flaw that another one explains is not told beside
// it: the defaults are current where nothing else is wrong with them.
func (s *Ruleset) Flaws(table Ruleset) (flaws []Flaw) {
	if s.Equal(table) {
		return nil
	}
	var twins, below, foreign, stale bool
	for _, kind := range Kinds() {
		list, _ := s.entryList(kind)
		want, _ := table.entryList(kind)
		unique := withoutTwins(list)
		rest := slices.DeleteFunc(slices.Clone(unique), func(e entry) bool { return IsLegacy(e.id) || e.isForeign(want) })
		twins = twins || len(unique) < len(list)
		below = below || indexOfEntry(list, masterID) > 0
		foreign = foreign || hasForeign(list, want)
		stale = stale || !isCurrent(kind, hoistMaster(rest), want)
	}
	for flaw, found := range map[Flaw]bool{
		TwinRules: twins, MasterNotFirst: below, LegacyRule: s.legacy, ForeignDefault: foreign, StaleDefaults: stale,
	} {
		if found {
			flaws = append(flaws, flaw)
		}
	}
	order := Flaws()
	slices.SortFunc(flaws, func(a, b Flaw) int { return slices.Index(order, a) - slices.Index(order, b) })
	return flaws
}

// Mend brings a set in order without losing what its user chose: of rules that
// are there twice one stays, and the server-default rules are merged with the
// table as [Ruleset.MergeDefaults] does. It fails, and changes nothing, with
// [ErrTwinsDiffer] or [ErrForeignDefault].
func (s *Ruleset) Mend(table Ruleset) error {
	set := s.tidy()
	for _, kind := range Kinds() {
		list, listed := set.entryList(kind)
		want, _ := table.entryList(kind)
		if hasForeign(list, want) {
			return ErrForeignDefault
		}
		unique := withoutTwins(list)
		for _, e := range list {
			if unique[indexOfEntry(unique, e.id)].text != e.text {
				return ErrTwinsDiffer
			}
		}
		set.setEntries(listed, unique)
	}
	set.MergeDefaults(table)
	*s = set
	return nil
}

// HasForeign reports whether the set has a server-default rule that is neither
// in the table nor legacy. To merge such a set loses the rule.
func (s *Ruleset) HasForeign(table Ruleset) bool {
	for _, kind := range Kinds() {
		list, _ := s.entryList(kind)
		want, _ := table.entryList(kind)
		if hasForeign(list, want) {
			return true
		}
	}
	return false
}

func hasForeign(list, want []entry) bool {
	return slices.ContainsFunc(list, func(e entry) bool { return e.isForeign(want) })
}

// isForeign reports whether an entry is a default rule of a table that does not
// have the rules that are wanted.
func (e entry) isForeign(want []entry) bool {
	return e.isServerDefault() && !IsLegacy(e.id) && indexOfEntry(want, e.id) < 0
}

// withoutTwins returns a list with the first rule of each id.
func withoutTwins(list []entry) []entry {
	seen := make(map[string]bool, len(list))
	return slices.DeleteFunc(slices.Clone(list), func(e entry) bool {
		before := seen[e.id]
		seen[e.id] = true
		return before
	})
}
