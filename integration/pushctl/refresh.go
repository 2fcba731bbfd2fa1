package main

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
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
			o.addWalk(flags)
			o.addState(flags)
			o.addDefaultRules(flags)
			o.addDurability(flags)
			flags.BoolVar(&o.dropOthers, "drop-others", false, "remove default rules that are in no table")
			flags.BoolVar(&o.list, "list", false, "list the users whose sets are left, with the reason")
		},
		run: func(ctx context.Context, c *call) error { return c.refresh(ctx) },
	}
}

// refreshing brings sets to the default table.
type refreshing struct {
	*call
	table  defaultTable
	counts refreshCounts
}

// refreshCounts is what a refresh comes to.
type refreshCounts struct {
	Sets       int64 `json:"sets"`
	Refreshed  int64 `json:"refreshed"`
	Unreadable int64 `json:"unreadable"`
	Others     int64 `json:"with_other_defaults"`
}

func (c *call) refresh(ctx context.Context) error {
	r := &refreshing{call: c, table: newDefaultTable(c.defaults)}
	place, err := newPosition(c.state, c.stateName("refresh-defaults", "default-rules "+c.defaultRules), &r.counts)
	if err != nil {
		return fmt.Errorf("-state: %w", err)
	}
	w := &walk{
		backend: c.backend, pace: &pace{rate: c.rate}, progress: c.newProgress("looked at", "keys"), position: place, look: r.look,
	}
	err = w.run(ctx)
	if isNothingFound(err) {
		return err
	}
	fmt.Fprintf(c.out, "%d sets: %d refreshed, %d left with other default rules, %d unreadable\n",
		r.counts.Sets, r.counts.Refreshed, r.counts.Others, r.counts.Unreadable)
	if err == nil && r.counts.Others+r.counts.Unreadable > 0 {
		err = errFaults
	}
	return err
}

// look refreshes the sets in a page of keys.
func (r *refreshing) look(ctx context.Context, node *redis.Client, keys []string) (done func(context.Context) error, err error) {
	reading, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	records, leftOut, err := r.readRecords(reading, node, sortedKeys{events: r.sort(keys).events})
	if err != nil {
		return nil, err
	}
	counts := refreshCounts{Sets: int64(len(records)) + leftOut, Unreadable: leftOut}
	stale := r.stale(records, &counts)
	var refused atomic.Int64
	err = atATime(ctx, workers, stale, func(ctx context.Context, user mxid.UserID) error {
		err := r.host.RefreshDefaults(ctx, user)
		if isRefused(err) {
			refused.Add(1)
			r.leave(user, fault.Details(err))
			return nil
		}
		return err
	})
	counts.Refreshed, counts.Unreadable = int64(len(stale))-refused.Load(), counts.Unreadable+refused.Load()
	return func(context.Context) error {
		r.counts.add(counts)
		return nil
	}, err
}

// stale returns the users whose sets are to be refreshed, and counts the others.
func (r *refreshing) stale(records []record, counts *refreshCounts) (stale []mxid.UserID) {
	for _, record := range records {
		e, err := r.events.Read(*record.event)
		switch {
		case err != nil:
			counts.Unreadable++
			r.leave(record.user, "unreadable")
		case !e.Found || r.table.isDefault(record.user, e.Rules) || e.Rules.IsCurrent(r.table.For(record.user)):
		case !r.dropOthers && e.Rules.HasForeign(r.table.For(record.user)):
			counts.Others++
			r.leave(record.user, "default rules that are in no table")
		default:
			stale = append(stale, record.user)
		}
	}
	return stale
}

// leave tells of a set that is left.
func (r *refreshing) leave(user mxid.UserID, why string) {
	if r.list {
		fmt.Fprintf(r.out, "left\t%s\t%s\n", why, printable(string(user)))
	}
}

func (c *refreshCounts) add(d refreshCounts) {
	c.Sets += d.Sets
	c.Refreshed += d.Refreshed
	c.Unreadable += d.Unreadable
	c.Others += d.Others
}
