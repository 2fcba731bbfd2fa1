package pushrule

import (
	"errors"
	"slices"
)

// Problem is a way in which a set that can be read differs from those that the
// service writes. The texts are for operators.
type Problem string

// The problems.
const (
	DuplicateRules Problem = "two rules of one id"
	MasterNotFirst Problem = "master rule not first"
	LegacyRule     Problem = "legacy rule"
	ForeignDefault Problem = "default rule not in the table"
	StaleDefaults  Problem = "defaults not current"
)

// Problems lists every problem that a set may have.
func Problems() []Problem {
	return []Problem{DuplicateRules, MasterNotFirst, LegacyRule, ForeignDefault, StaleDefaults}
}

// The reasons for which [Ruleset.Repair] leaves a set alone.
var (
	ErrDuplicatesDiffer = errors.New("two rules of one id differ, and both may be wanted")
	ErrForeignDefault   = errors.New("a default rule is not in the table, and would be lost")
)

// Problems returns the problems of the set, each once and in the order of the
// function [Problems]. The table is what [Defaults.For] returned for the user. It
// leaves out what another problem explains: StaleDefaults is what is wrong with
// the defaults beside all others.
func (s *Ruleset) Problems(table Ruleset) (problems []Problem) {
	if s.Equal(table) {
		return nil
	}
	var duplicates, below, foreign, stale bool
	for _, kind := range Kinds() {
		list, _ := s.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
		unique := withoutDuplicates(list)
		rest := slices.DeleteFunc(slices.Clone(unique), func(e entry) bool { return IsLegacy(e.id) || e.isForeign(want) })
		duplicates = duplicates || len(unique) < len(list)
		below = below || indexOfEntry(list, masterID) > 0
		foreign = foreign || hasForeign(list, want)
		stale = stale || !isCurrent(kind, hoistMaster(rest), want)
	}
	has := map[Problem]bool{
		DuplicateRules: duplicates, MasterNotFirst: below, LegacyRule: s.HasLegacy(), ForeignDefault: foreign, StaleDefaults: stale,
	}
	for _, problem := range Problems() {
		if has[problem] {
			problems = append(problems, problem)
		}
	}
	return problems
}

// Repair solves the problems of a set without losing what its user chose: of
// equal rules of one id the first stays, and the server-default rules are merged
// with the table as [Ruleset.MergeDefaults] does. It fails, and changes nothing,
// with [ErrDuplicatesDiffer] or [ErrForeignDefault].
func (s *Ruleset) Repair(table Ruleset) error {
	repaired := Ruleset{s.doc.canonicalized()}
	for _, kind := range Kinds() {
		list, listed := repaired.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
		if hasForeign(list, want) {
			return ErrForeignDefault
		}
		unique := withoutDuplicates(list)
		for _, e := range list {
			if unique[indexOfEntry(unique, e.id)].text != e.text {
				return ErrDuplicatesDiffer
			}
		}
		repaired.doc = repaired.doc.withList(listed, unique)
	}
	repaired.MergeDefaults(table)
	*s = repaired
	return nil
}

// HasForeign reports whether the set has a server-default rule that is neither
// in the table nor legacy. To merge such a set loses the rule.
func (s *Ruleset) HasForeign(table Ruleset) bool {
	for _, kind := range Kinds() {
		list, _ := s.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
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
	return e.isServerDefault() && !IsLegacy(e.id) && indexOfEntry(want, e.id) < 0 && indexOfEntry(want, otherID(e.id)) < 0
}

// withoutDuplicates returns a list with the first rule of each id.
func withoutDuplicates(list []entry) []entry {
	seen := make(map[string]bool, len(list))
	return slices.DeleteFunc(slices.Clone(list), func(e entry) bool {
		before := seen[e.id]
		seen[e.id] = true
		return before
	})
}
