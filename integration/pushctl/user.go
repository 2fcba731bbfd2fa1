package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// addUserChange adds the flags of [call.changeUser].
func (f *flags) addUserChange() {
	f.addDurability()
	f.addYes()
	f.StringVar(&f.save, "save", "", "`FILE` for the former data, which holds pushkeys (default none)")
}

// changeUser checks and saves the data of USER. With -yes, it then calls do.
func (c *call) changeUser(
	ctx context.Context, verb string, check func(context.Context, mxid.UserID, []record) error, do func(context.Context, mxid.UserID) error,
) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	records, err := c.recordsOfUser(ctx, user)
	if err != nil {
		return err
	}
	if err := check(ctx, user, records); err != nil {
		return err
	}
	if c.yes && c.save != "" {
		if err := c.saveRecords(c.save, records); err != nil {
			return fmt.Errorf("-save: %w", err)
		}
	}
	has := "has"
	if c.yes {
		has = "had"
		if err := do(ctx, user); err != nil {
			return err
		}
	}
	return c.report("%s %s, who %s %s", verb, printable(string(user)), has, describe(records))
}

// report writes what was changed, or without -yes what would be changed.
func (c *call) report(format string, args ...any) (err error) {
	if c.yes {
		_, err = fmt.Fprintf(c.out, "done: "+format+"\n", args...)
	} else {
		_, err = fmt.Fprintf(c.out, "would "+format+" (-yes does it)\n", args...)
	}
	return err
}

func (c *call) recordsOfUser(ctx context.Context, user mxid.UserID) ([]record, error) {
	values, err := c.readOfUser(ctx, c.keys.Rules(user), c.keys.Pushers(user))
	if err != nil {
		return nil, err
	}
	records, others := recordsOf(values)
	if others > 0 {
		return nil, errOtherType
	}
	for _, r := range records {
		if err := r.otherVersion(); err != nil {
			return nil, fmt.Errorf("%s has %w", printable(string(user)), err)
		}
	}
	return records, nil
}

func describe(records []record) string {
	rules, pushers := "no push rules", "no pushers"
	for _, r := range records {
		if r.event != nil {
			rules = fmt.Sprintf("push rules of %d bytes", len(*r.event))
		} else {
			pushers = fmt.Sprintf("a pusher hash of %d fields", len(r.fields))
		}
	}
	return rules + " and " + pushers
}

func (c *call) saveRecords(name string, records []record) error {
	a, err := createArchive(name, c.backend)
	if err != nil {
		return err
	}
	return errors.Join(a.add(records...), a.end())
}

var resetCommand = command{
	name: "reset", args: "USER",
	summary: "gives a user the default push rules",
	about: "Replaces a user's push rules, readable or not, by the default rules. Clients notice at their next\n" +
		"sync. Pushers stay. Without -yes it shows what it would do. With -save, import -overwrite brings the\n" +
		"former data back. Exit status 1: the user has no push rules, and the id may be mistyped.",
	flags: func(f *flags) {
		f.addDefaultRules()
		f.addUserChange()
	},
	run: func(c *call, ctx context.Context) error {
		return c.changeUser(ctx, "give the default push rules to", c.checkReset, c.resetRules)
	},
}

func (c *call) checkReset(_ context.Context, user mxid.UserID, records []record) error {
	switch {
	case slices.ContainsFunc(records, func(r record) bool { return r.event != nil }):
		return nil
	case len(records) == 0:
		return c.notFound(user)
	}
	return notFoundError(fmt.Sprintf("%s has %s, so there is nothing to reset", printable(string(user)), describe(records)))
}

// resetRules gives a user the default rules. It replaces an unreadable event only if the
// event has not changed since it was read.
func (c *call) resetRules(ctx context.Context, user mxid.UserID) error {
	defaults := c.defaults.For(user)
	_, err := c.rules.Update(ctx, user, func(rules *pushrule.Ruleset, _ bool) error {
		*rules = defaults
		return nil
	})
	if fault.KindOf(err) != fault.Database || fault.IsOtherVersion(err) {
		return err
	}
	reading, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	text, err := c.client.Get(reading, c.keys.Rules(user)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return orChanged(c.rules.Replace(ctx, user, &text, eventOf(defaults)))
}

var forgetCommand = command{
	name: "forget", args: "USER",
	summary: "removes a user's data and waiting notifications",
	about: "Removes a user's push rules, pushers and unread counts, readable or not, their claims in the index of\n" +
		"pushkeys, and their waiting notifications, as hosts do when a user is deactivated. An active user\n" +
		"gets the default rules at the next request. Without -yes it shows what it would do. Exit status 1:\n" +
		"the user has no data, and the id may be mistyped.",
	flags: (*flags).addUserChange,
	run: func(c *call, ctx context.Context) error {
		return c.changeUser(ctx, "forget", c.checkForget, c.forgetUser)
	},
}

func (c *call) checkForget(ctx context.Context, user mxid.UserID, records []record) error {
	values, err := c.readOfUser(ctx, c.keys.Unread(user))
	if err != nil {
		return err
	}
	switch v := values[0]; {
	case v.state == isOtherType:
		return errOtherType
	case fault.IsOtherVersion(readUnread(v).err):
		return fmt.Errorf("%s: %w", v.name, readUnread(v).err)
	case v.state == isAbsent && len(records) == 0:
		return c.notFound(user)
	}
	return nil
}

func (c *call) forgetUser(ctx context.Context, user mxid.UserID) error {
	hasQueue, other, err := c.readFormat(ctx)
	if other != nil || err != nil {
		return errors.Join(other, err)
	}
	if err := c.host.ForgetUser(ctx, user); err != nil || !hasQueue {
		return err
	}
	return c.queue.Forget(ctx, user)
}
