package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

func refreshCommand() command {
	return command{
		name:    "refresh-defaults",
		summary: "brings all stored sets to the current default rules",
		about: "Brings the default rules in every user's set to the current ones, after the hosts were upgraded or\n" +
			"have other features. The settings of users, enabled and actions, stay. A set with a default rule that\n" +
			"is in no table is left alone, since the rule would be lost: -features and -default-rules name the\n" +
			"rules that the hosts have, and -drop-others removes all others. Users' settings of features that are\n" +
			"off are kept for the day when the feature is on again. Exit status 1 says that sets were left.",
		setup: func(f *flags) runner {
			f.addDefaultRules()
			f.addDurability()
			p, r := f.pace(), &refresher{}
			f.BoolVar(&r.dropOthers, "drop-others", false, "remove default rules that are in no table")
			f.BoolVar(&r.list, "list", false, "list the users whose sets are left, with the reason")
			return func(ctx context.Context, c *call) error {
				r.call = c
				return r.run(ctx, p)
			}
		},
	}
}

// refresher brings sets of rules to the current default rules, and counts them.
type refresher struct {
	*call
	dropOthers, list bool

	mu                                  sync.Mutex
	sets, refreshed, unreadable, others int
}

func (r *refresher) run(ctx context.Context, p *pace) error {
	err := r.newScanner(p, "refreshed").scan(ctx, func(ctx context.Context, node *redis.Client, keys []string) error {
		sets, err := r.readAnywhere(ctx, node, keys, stored.RulesKey)
		if err != nil {
			return err
		}
		return parallel(ctx, sets, r.refresh)
	})
	if errors.Is(err, errNothing) {
		return err
	}
	fmt.Fprintf(r.out, "%d sets: %d refreshed, %d left with other default rules, %d unreadable\n", r.sets, r.refreshed, r.others, r.unreadable)
	if err == nil && r.others+r.unreadable > 0 {
		err = errProblems
	}
	return err
}

// refresh refreshes a set if it is stale.
func (r *refresher) refresh(ctx context.Context, set value) error {
	if set.state == isAbsent {
		return nil
	}
	e, err := stored.ReadEvent(set.text)
	defaults := r.defaults.For(set.User)
	switch {
	case set.state == isOtherType || err != nil:
		r.count(&r.unreadable, set.User, "unreadable")
	case !e.Found || e.Rules.IsCurrent(defaults):
		r.count(nil, set.User, "")
	case !r.dropOthers && e.Rules.HasForeign(defaults):
		r.count(&r.others, set.User, "default rules that are in no table")
	default:
		if err := r.host.RefreshDefaults(ctx, set.User); isRefused(err) {
			r.count(&r.unreadable, set.User, fault.Details(err))
		} else if err != nil {
			return err
		} else {
			r.count(&r.refreshed, set.User, "")
		}
	}
	return nil
}

// count counts a set, also as one of its kind, and lists it with the reason for which it
// is left, if there is one.
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
