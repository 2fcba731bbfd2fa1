package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

func refreshCommand() command {
	return command{
		name:    "refresh-defaults",
		summary: "brings all users' sets to the current default rules",
		about: "Brings the default rules in every user's set to the current version, after an upgrade of the hosts or a\n" +
			"change of their features. Users keep their choices, enabled and actions. Name the hosts' features with\n" +
			"-features: the rules of other features are removed, and come back with the choices when the feature is\n" +
			"on again. A set with an unknown default rule is left, since its choices would be lost: name the hosts'\n" +
			"rules with -default-rules, or drop unknown rules with -drop-others. Exit status 1: sets were left.",
		flags: func(f *flags) {
			f.addDefaultRules()
			f.addDurability()
			f.addRate()
			f.BoolVar(&f.dropOthers, "drop-others", false, "remove unknown default rules")
			f.BoolVar(&f.list, "list", false, "list users whose sets are left, with the reason")
		},
		run: (*call).refreshDefaults,
	}
}

// refresher updates rule sets to the current default rules, and counts the sets.
type refresher struct {
	*call
	mu                                  sync.Mutex
	sets, refreshed, unreadable, others int
	otherVersion                        int
	off                                 map[string]int // sets that lost a feature's rules
}

func (c *call) refreshDefaults(ctx context.Context) error {
	r := &refresher{call: c, off: map[string]int{}}
	err := r.newScanner("refreshed").scan(ctx, func(ctx context.Context, node *redis.Client, keys []string) error {
		sets, err := r.readAnywhere(ctx, node, keys, stored.RulesKey)
		if err != nil {
			return err
		}
		return parallel(ctx, sets, r.refresh)
	})
	if errors.Is(err, errNoKeys) {
		return err
	}
	fmt.Fprintf(r.out, "%d sets: %d refreshed, %d left with unknown default rules, %d unreadable\n", r.sets, r.refreshed, r.others, r.unreadable)
	for _, feature := range pushrule.Features() {
		if n := r.off[feature.Name]; n > 0 {
			fmt.Fprintf(r.out, "%d sets lost the rules of %s, which is not in -features; users' choices are kept\n", n, feature.Name)
		}
	}
	if r.otherVersion > 0 {
		fmt.Fprintf(r.out, "%d sets are of another version\n", r.otherVersion)
	}
	if err == nil && r.others+r.unreadable+r.otherVersion > 0 {
		err = errProblems
	}
	return err
}

func (r *refresher) refresh(ctx context.Context, set value) error {
	if set.state == isAbsent {
		return nil
	}
	e, err := stored.ReadEvent(set.text)
	defaults := r.defaults.For(set.User)
	switch {
	case fault.IsOtherVersion(err):
		r.count(&r.otherVersion, set.User, "of another version")
	case set.state == isOtherType || set.state == isElsewhere || err != nil:
		r.count(&r.unreadable, set.User, "unreadable")
	case !e.Found || e.Rules.IsCurrent(defaults):
		r.count(nil, set.User, "")
	case !r.dropOthers && e.Rules.HasForeign(defaults):
		r.count(&r.others, set.User, "unknown default rules")
	default:
		if err := r.host.RefreshDefaults(ctx, set.User); isRefused(err) {
			r.count(&r.unreadable, set.User, fault.Details(err))
		} else if err != nil {
			return err
		} else {
			r.count(&r.refreshed, set.User, "")
			r.countOff(e.Rules.FeaturesOff(defaults))
		}
	}
	return nil
}

func (r *refresher) countOff(features []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range features {
		r.off[name]++
	}
}

// count adds one to the number of sets and, if kind is not nil, to kind. If why gives a reason why the set was not
// updated, count lists the user.
func (r *refresher) count(kind *int, user mxid.UserID, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets++
	if kind != nil {
		*kind++
	}
	if r.list && why != "" {
		fmt.Fprintf(r.out, "left\t%s\t%s\n", why, printable(string(user)))
	}
}
