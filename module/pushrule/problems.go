package pushrule

import (
	"errors"
	"slices"
)

// Problem is a defect of a readable set, described for operators.
type Problem string

// The problems.
const (
	DuplicateRules Problem = "two rules of one id"
	MasterNotFirst Problem = "master rule not first"
	LegacyRule     Problem = "legacy rule"
	ForeignDefault Problem = "default rule not in the table"
	FeatureOff     Problem = "rules of a feature that is off"
	StaleDefaults  Problem = "defaults not current"
)

// Problems lists all problems.
func Problems() []Problem {
	return []Problem{DuplicateRules, MasterNotFirst, LegacyRule, ForeignDefault, FeatureOff, StaleDefaults}
}

// The errors of [Ruleset.Repair].
var (
	ErrDuplicatesDiffer = errors.New("two rules with the same id differ")
	ErrForeignDefault   = errors.New("a default rule is not in the table and would be removed")
	ErrFeatureOff       = errors.New("the rules of a feature would be removed")
)

// Problems returns the set's problems in the order of the function [Problems]. The
// table is [Defaults.For] of the user. StaleDefaults are differences from the table
// that no other problem explains.
func (s *Ruleset) Problems(table Ruleset) (problems []Problem) {
	if s.Equal(table) {
		return nil
	}
	var duplicates, below, foreign, stale bool
	for _, kind := range Kinds() {
		list, _ := s.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
		unique := withoutDuplicates(list)
		rest := slices.DeleteFunc(slices.Clone(unique), func(e ruleText) bool { return IsLegacy(e.id) || e.isOutside(want) })
		duplicates = duplicates || len(unique) < len(list)
		below = below || indexOfEntry(list, masterID) > 0
		foreign = foreign || hasForeign(kind, list, want)
		stale = stale || !isCurrent(kind, hoistMaster(rest), want)
	}
	has := map[Problem]bool{
		DuplicateRules: duplicates, MasterNotFirst: below, LegacyRule: s.HasLegacy(), ForeignDefault: foreign,
		FeatureOff: len(s.FeaturesOff(table)) > 0, StaleDefaults: stale,
	}
	for _, problem := range Problems() {
		if has[problem] {
			problems = append(problems, problem)
		}
	}
	return problems
}

// Repair removes equal duplicates of a rule, calls [Ruleset.MergeDefaults], and keeps
// the user's settings. Errors: [ErrDuplicatesDiffer], and [ErrForeignDefault] and
// [ErrFeatureOff], because the caller may have the wrong table. An error changes
// nothing.
func (s *Ruleset) Repair(table Ruleset) error {
	if len(s.FeaturesOff(table)) > 0 && !s.HasForeign(table) {
		return ErrFeatureOff
	}
	repaired := Ruleset{s.doc.canonicalized()}
	for _, kind := range Kinds() {
		list, listed := repaired.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
		if hasForeign(kind, list, want) {
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

// HasForeign reports whether the set has a server-default rule that is neither in the
// table, nor legacy, nor of a feature of this package. A merge removes it with the user's
// settings.
func (s *Ruleset) HasForeign(table Ruleset) bool {
	for _, kind := range Kinds() {
		list, _ := s.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
		if hasForeign(kind, list, want) {
			return true
		}
	}
	return false
}

// FeaturesOff returns the names of the features that are off, in the order of [Features]:
// the set has a rule of the feature, and the table lacks this rule. A merge removes these
// rules and keeps the user's settings; see [Ruleset.MergeDefaults].
func (s *Ruleset) FeaturesOff(table Ruleset) (names []string) {
	off := map[string]bool{}
	for _, kind := range Kinds() {
		list, _ := s.doc.entryList(kind)
		want, _ := table.doc.entryList(kind)
		for _, e := range list {
			if e.isOutside(want) && e.isOfFeature(kind) {
				off[featureRules[e.id].feature] = true
			}
		}
	}
	for _, feature := range Features() {
		if off[feature.Name] {
			names = append(names, feature.Name)
		}
	}
	return names
}

func hasForeign(kind Kind, list, want []ruleText) bool {
	return slices.ContainsFunc(list, func(e ruleText) bool { return e.isOutside(want) && !e.isOfFeature(kind) })
}

func (e ruleText) isOfFeature(kind Kind) bool { return featureRules[e.id].Kind == kind }

// isOutside reports whether an entry is a server-default rule that is neither wanted nor
// legacy.
func (e ruleText) isOutside(want []ruleText) bool {
	return e.isServerDefault() && !IsLegacy(e.id) && indexOfEntry(want, e.id) < 0 && indexOfEntry(want, otherID(e.id)) < 0
}

func withoutDuplicates(list []ruleText) []ruleText {
	seen := make(map[string]bool, len(list))
	return slices.DeleteFunc(slices.Clone(list), func(e ruleText) bool {
		before := seen[e.id]
		seen[e.id] = true
		return before
	})
}
