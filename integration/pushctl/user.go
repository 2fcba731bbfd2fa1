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

// userChange is a command that removes or replaces a user's data.
type userChange struct {
	verb string // such as "forget"
	yes  bool
	save string // a file for the former data

	check func(ctx context.Context, c *call, user mxid.UserID, records []record) error // may refuse the change
	do    func(ctx context.Context, c *call, user mxid.UserID) error
}

func (u *userChange) addTo(f *flags) {
	f.addDurability()
	f.BoolVar(&u.yes, "yes", false, "make the change; without it, show the change")
	f.StringVar(&u.save, "save", "", "`FILE` for the former data, which holds pushkeys (default none)")
}

// run checks and saves the user's data, then makes the change.
func (u *userChange) run(ctx context.Context, c *call) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	records, err := c.recordsOfUser(ctx, user)
	if err != nil {
		return err
	}
	if err := u.check(ctx, c, user, records); err != nil {
		return err
	}
	if !u.yes {
		_, err := fmt.Fprintf(c.out, "would %s %s, who has %s (-yes does it)\n", u.verb, printable(string(user)), describe(records))
		return err
	}
	if u.save != "" {
		if err := c.saveRecords(u.save, records); err != nil {
			return fmt.Errorf("-save: %w", err)
		}
	}
	if err := u.do(ctx, c, user); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "done: %s %s, who had %s\n", u.verb, printable(string(user)), describe(records))
	return err
}

func (c *call) recordsOfUser(ctx context.Context, user mxid.UserID) ([]record, error) {
	values, err := c.readValues(ctx, c.client, []string{c.keys.Rules(user), c.keys.Pushers(user)})
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

func resetCommand() command {
	return command{
		name: "reset", args: "USER",
		summary: "gives a user the default push rules",
		about: "Replaces a user's push rules, readable or not, by the default rules. Clients notice at their next\n" +
			"sync. Pushers stay. Without -yes it shows what it would do. With -save, import -overwrite brings the\n" +
			"former data back. Exit status 1: the user has no push rules, and the id may be mistyped.",
		setup: func(f *flags) runner {
			u := &userChange{verb: "give the default push rules to", do: resetRules}
			u.check = func(_ context.Context, c *call, user mxid.UserID, records []record) error {
				if slices.ContainsFunc(records, func(r record) bool { return r.event != nil }) {
					return nil
				}
				if len(records) == 0 {
					return c.notFound(user)
				}
				return notFoundError(fmt.Sprintf("%s has %s, so there is nothing to reset", printable(string(user)), describe(records)))
			}
			f.addDefaultRules()
			u.addTo(f)
			return u.run
		},
	}
}

// resetRules gives a user the default rules. It replaces an unreadable event only if the
// event has not changed since it was read.
func resetRules(ctx context.Context, c *call, user mxid.UserID) error {
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

func forgetCommand() command {
	return command{
		name: "forget", args: "USER",
		summary: "removes a user's data and waiting notifications",
		about: "Removes a user's push rules, pushers and unread counts, readable or not, their claims in the index of\n" +
			"pushkeys, and their waiting notifications, as hosts do when a user is deactivated. An active user\n" +
			"gets the default rules at the next request. Without -yes it shows what it would do. Exit status 1:\n" +
			"the user has no data, and the id may be mistyped.",
		setup: func(f *flags) runner {
			u := &userChange{verb: "forget", check: checkForget, do: forgetUser}
			u.addTo(f)
			return u.run
		},
	}
}

func checkForget(ctx context.Context, c *call, user mxid.UserID, records []record) error {
	if len(records) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	n, err := c.client.Exists(ctx, c.keys.Unread(user)).Result()
	if err == nil && n == 0 {
		err = c.notFound(user)
	}
	return err
}

func forgetUser(ctx context.Context, c *call, user mxid.UserID) error {
	if _, other, err := c.readFormat(ctx); other != nil || err != nil {
		return errors.Join(other, err)
	}
	if err := c.host.ForgetUser(ctx, user); err != nil {
		return err
	}
	return (&deliveryCall{call: c}).forgetBacklogs(ctx, user)
}
