package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

var refreshCommand = command{
	name:    "refresh-defaults",
	summary: "brings all users' sets to the current default rules",
	about: "Brings the default rules in every user's set to the current version, after an upgrade of the hosts or a\n" +
		"change of their features. Without -yes it shows which rules it would add, remove and change, and for how\n" +
		"many users. Users keep their choices, enabled and actions. Name the hosts' features with -features: the\n" +
		"rules of other features are removed, and come back with the choices when the feature is on again. A set\n" +
		"with an unknown default rule is left, since its choices would be lost: name the hosts' rules with\n" +
		"-default-rules, or drop unknown rules with -drop-others. Exit status 1: sets were left.",
	flags: func(f *flags) {
		f.addDefaultRules()
		f.addDurability()
		f.addRate()
		f.addYes()
		f.addJSON()
		f.BoolVar(&f.dropOthers, "drop-others", false, "remove unknown default rules")
		f.BoolVar(&f.list, "list", false, "list users whose sets are left, with the reason")
	},
	run: (*call).refreshDefaults,
}

// refresher updates rule sets to the current default rules, and counts the sets. Without -yes it only counts.
type refresher struct {
	*call
	mu    sync.Mutex
	rules map[ruleName]*refreshedRule
	refreshReport
}

type ruleName struct {
	kind pushrule.Kind
	id   string
}

type refreshReport struct {
	Sets         int             `json:"sets"`
	Changed      bool            `json:"changed"`   // with -yes
	Refreshed    int             `json:"refreshed"` // without -yes: sets to refresh
	Others       int             `json:"left_with_unknown_default_rules"`
	Unreadable   int             `json:"unreadable"`
	OtherVersion int             `json:"of_another_version"`
	FeaturesOff  map[string]int  `json:"features_off"` // number of sets that lose the feature's rules, by feature
	Rules        []refreshedRule `json:"rules"`
}

// refreshedRule has the numbers of users for whom a default rule changes.
type refreshedRule struct {
	Kind    pushrule.Kind `json:"kind"`
	ID      string        `json:"rule_id"`
	Added   int           `json:"added"`
	Removed int           `json:"removed"`
	Changed int           `json:"changed"`
}

func (c *call) refreshDefaults(ctx context.Context) error {
	r := &refresher{call: c, rules: map[ruleName]*refreshedRule{}, refreshReport: refreshReport{Changed: c.yes, FeaturesOff: map[string]int{}}}
	label := "refreshed"
	if !c.yes {
		label = "examined"
	}
	err := r.newScanner(label).scan(ctx, func(ctx context.Context, node *redis.Client, keys []string) error {
		sets, err := r.readAnywhere(ctx, node, keys, stored.RulesKey)
		if err != nil {
			return err
		}
		return parallel(ctx, sets, r.refresh)
	})
	if errors.Is(err, errNoKeys) {
		return err
	}
	r.Rules = []refreshedRule{}
	for _, rule := range r.rules {
		r.Rules = append(r.Rules, *rule)
	}
	kinds := pushrule.Kinds()
	slices.SortFunc(r.Rules, func(a, b refreshedRule) int {
		return cmp.Or(slices.Index(kinds[:], a.Kind)-slices.Index(kinds[:], b.Kind), strings.Compare(a.ID, b.ID))
	})
	isLeft := r.Others+r.Unreadable+r.OtherVersion > 0 || !r.yes && r.Refreshed > 0
	return cmp.Or(err, r.result(r.refreshReport, r.write, isLeft))
}

func (r *refresher) refresh(ctx context.Context, set value) error {
	if set.state == isAbsent {
		return nil
	}
	e, err := stored.ReadEvent(set.text)
	defaults := r.defaults.For(set.User)
	switch {
	case fault.IsOtherVersion(err):
		return r.count(&r.OtherVersion, set.User, "of another version")
	case set.state == isOtherType || set.state == isElsewhere || err != nil:
		return r.count(&r.Unreadable, set.User, "unreadable")
	case !e.Found || e.Rules.IsCurrent(defaults):
		return r.count(nil, set.User, "")
	case !r.dropOthers && e.Rules.HasForeign(defaults):
		return r.count(&r.Others, set.User, "unknown default rules")
	}
	if r.yes {
		err := r.host.RefreshDefaults(ctx, set.User)
		if isRefused(err) {
			return r.count(&r.Unreadable, set.User, fault.Details(err))
		}
		if err != nil {
			return err
		}
	}
	r.countRules(e.Rules, defaults)
	return r.count(&r.Refreshed, set.User, "")
}

// countRules counts the default rules that a refresh changes in a set.
func (r *refresher) countRules(before, defaults pushrule.Ruleset) {
	after := before
	after.MergeDefaults(defaults)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range before.FeaturesOff(defaults) {
		r.FeaturesOff[name]++
	}
	for _, kind := range pushrule.Kinds() {
		for _, rule := range before.List(kind) {
			now, found := after.Rule(kind, rule.ID)
			switch {
			case !strings.HasPrefix(rule.ID, "."):
			case !found:
				r.rule(kind, rule.ID).Removed++
			case !slices.Equal(rule.Conditions, now.Conditions) || rule.Pattern != now.Pattern || rule.Default != now.Default:
				r.rule(kind, rule.ID).Changed++
			}
		}
		for _, rule := range after.List(kind) {
			if _, found := before.Rule(kind, rule.ID); !found {
				r.rule(kind, rule.ID).Added++
			}
		}
	}
}

func (r *refresher) rule(kind pushrule.Kind, id string) *refreshedRule {
	name := ruleName{kind, id}
	if r.rules[name] == nil {
		r.rules[name] = &refreshedRule{Kind: kind, ID: id}
	}
	return r.rules[name]
}

// count adds one to the number of sets and, if kind is not nil, to kind. If why gives a reason why the set was not
// updated, count lists the user.
func (r *refresher) count(kind *int, user mxid.UserID, why string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Sets++
	if kind != nil {
		*kind++
	}
	if !r.list || why == "" {
		return nil
	}
	return r.writeLine(listedProblem{Problem: why, Name: string(user)}, "left", why, string(user))
}

func (r *refresher) write(w io.Writer) error {
	refreshed, lost := "refreshed", "lost"
	if !r.yes {
		refreshed, lost = "would be refreshed (-yes does it)", "would lose"
	}
	fmt.Fprintf(w, "%d sets: %d %s, %d left with unknown default rules, %d unreadable\n", r.Sets, r.Refreshed, refreshed, r.Others, r.Unreadable)
	for _, feature := range pushrule.Features() {
		if n := r.FeaturesOff[feature.Name]; n > 0 {
			fmt.Fprintf(w, "%d sets %s the rules of %s, which is not in -features; users' choices are kept\n", n, lost, feature.Name)
		}
	}
	if r.OtherVersion > 0 {
		fmt.Fprintf(w, "%d sets are of another version\n", r.OtherVersion)
	}
	if len(r.Rules) == 0 {
		return nil
	}
	var rows [][]string
	for _, rule := range r.Rules {
		rows = append(rows, []string{
			string(rule.Kind) + " " + printable(rule.ID), strconv.Itoa(rule.Added), strconv.Itoa(rule.Removed), strconv.Itoa(rule.Changed),
		})
	}
	fmt.Fprintln(w)
	return writeTable(w, []string{"DEFAULT RULE", "USERS: ADDED", "REMOVED", "CHANGED"}, rows)
}
