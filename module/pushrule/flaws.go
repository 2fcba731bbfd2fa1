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
	set, twins, below, foreign := s.tidy(), false, false, false
	for _, kind := range Kinds() {
		list, listed := set.entryList(kind)
		unique := withoutTwins(list)
		expected := slices.DeleteFunc(slices.Clone(unique), func(e entry) bool {
			return IsLegacy(e.id) || e.isForeign(kind, &table)
		})
		twins = twins || len(unique) < len(list)
		below = below || indexOfEntry(list, masterID) > 0
		foreign = foreign || slices.ContainsFunc(list, func(e entry) bool { return e.isForeign(kind, &table) })
		set.setEntries(listed, hoistMaster(expected))
	}
	for flaw, found := range map[Flaw]bool{
		TwinRules: twins, MasterNotFirst: below, LegacyRule: s.legacy, ForeignDefault: foreign, StaleDefaults: !set.IsCurrent(table),
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
		if slices.ContainsFunc(list, func(e entry) bool { return e.isForeign(kind, &table) }) {
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
		for _, e := range s.entries(kind) {
			if e.isForeign(kind, &table) {
				return true
			}
		}
	}
	return false
}

// isForeign reports whether an entry is a default rule of another table.
func (e entry) isForeign(kind Kind, table *Ruleset) bool {
	if !e.isServerDefault() || IsLegacy(e.id) {
		return false
	}
	_, _, found := table.find(kind, e.id)
	return !found
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
