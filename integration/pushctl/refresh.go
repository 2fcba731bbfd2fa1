package main

import (
	"context"
	"flag"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

func refreshCommand() command {
	return command{
		name:    "refresh-defaults",
		summary: "brings all stored sets to the current default rules",
		about: "Brings the default rules in every user's set to the current ones, after the hosts were upgraded.\n" +
			"What users chose of them, enabled and actions, stays. A set with a default rule that is in no table\n" +
			"is left alone, since the rule would be lost: -default-rules tells of those that the hosts have, and\n" +
			"-drop-others takes such rules away. Exit status 1 says that sets were left.",
		flags: func(o *options, flags *flag.FlagSet) {
			o.addScan(flags)
			o.addState(flags)
			o.addDefaultRules(flags)
			o.addDurability(flags)
			flags.BoolVar(&o.dropOthers, "drop-others", false, "remove default rules that are in no table")
			flags.BoolVar(&o.list, "list", false, "list the users whose sets are left, with the reason")
		},
		run: func(ctx context.Context, c *call) error { return c.refresh(ctx) },
	}
}

// refreshCounts is what a refresh comes to.
type refreshCounts struct {
	Sets       int64 `json:"sets"`
	Refreshed  int64 `json:"refreshed"`
	Unreadable int64 `json:"unreadable"`
	Others     int64 `json:"with_other_defaults"`
}

func (c *call) refresh(ctx context.Context) error {
	var counts refreshCounts
	from, err := newPosition(c.state, c.stateName("refresh-defaults", "default-rules "+c.defaultRules), &counts)
	if err != nil {
		return fmt.Errorf("-state: %w", err)
	}
	err = c.newScanner("examined", from).Scan(ctx, func(ctx context.Context, node *redis.Client, keys []string) (func(context.Context) error, error) {
		sets, err := c.readSets(ctx, node, keys)
		return func(ctx context.Context) error { return c.refreshSets(ctx, sets, &counts) }, err
	})
	if isNothingFound(err) {
		return err
	}
	fmt.Fprintf(c.out, "%d sets: %d refreshed, %d left with other default rules, %d unreadable\n",
		counts.Sets, counts.Refreshed, counts.Others, counts.Unreadable)
	if err == nil && counts.Others+counts.Unreadable > 0 {
		err = errProblems
	}
	return err
}

// readSets reads the push rules among some keys.
func (c *call) readSets(ctx context.Context, node *redis.Client, keys []string) ([]value, error) {
	return c.readAnywhere(ctx, node, slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		return c.keys.Parse(key).Kind != stored.RulesKey
	}))
}

// setState is what becomes of a set of rules.
type setState int

const (
	setCurrent setState = iota
	setStale            // to be refreshed
	setForeign          // has default rules that are in no table
	setUnreadable
)

// refreshSets refreshes the sets that are stale, and counts all. If that fails on
// the way, it counts what it has refreshed: the others will be read again.
func (c *call) refreshSets(ctx context.Context, sets []value, counts *refreshCounts) error {
	stale, page := c.staleAmong(sets)
	type result struct {
		user    mxid.UserID
		refused error
	}
	results, err := parallel(ctx, stale, func(ctx context.Context, user mxid.UserID) (result, error) {
		err := c.host.RefreshDefaults(ctx, user)
		if isRefused(err) {
			return result{user, err}, nil
		}
		return result{user, nil}, err
	})
	for _, r := range results {
		if r.refused == nil {
			page.Refreshed++
			continue
		}
		page.Unreadable++
		c.leave(r.user, fault.Details(r.refused))
	}
	if err != nil {
		page = refreshCounts{Refreshed: page.Refreshed}
	}
	counts.add(page)
	return err
}

// staleAmong returns the users whose sets are to be refreshed, and counts all sets. It
// tells of those that are left.
func (c *call) staleAmong(sets []value) (stale []mxid.UserID, counts refreshCounts) {
	for _, set := range sets {
		if set.state == isAbsent {
			continue
		}
		counts.Sets++
		switch c.stateOf(set) {
		case setStale:
			stale = append(stale, set.User)
		case setForeign:
			counts.Others++
			c.leave(set.User, "default rules that are in no table")
		case setUnreadable:
			counts.Unreadable++
			c.leave(set.User, "unreadable")
		case setCurrent:
		}
	}
	return stale, counts
}

func (c *refreshCounts) add(d refreshCounts) {
	c.Sets += d.Sets
	c.Refreshed += d.Refreshed
	c.Unreadable += d.Unreadable
	c.Others += d.Others
}

func (c *call) stateOf(set value) setState {
	e, err := stored.ReadEvent(set.text)
	switch {
	case set.state == isOtherType || err != nil:
		return setUnreadable
	case !e.Found || c.defaults.isDefault(set.User, e.Rules) || e.Rules.IsCurrent(c.defaults.For(set.User)):
		return setCurrent
	case !c.dropOthers && e.Rules.HasForeign(c.defaults.For(set.User)):
		return setForeign
	}
	return setStale
}

// leave tells of a set that is left.
func (c *call) leave(user mxid.UserID, why string) {
	if c.list {
		fmt.Fprintf(c.out, "left\t%s\t%s\n", why, printable(string(user)))
	}
}
