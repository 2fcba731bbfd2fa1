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

// userChange is a command that takes something away from a user.
type userChange struct {
	what string // it does
	yes  bool
	save string // the file for what was there

	check func(c *call, user mxid.UserID, there []record) error // refuses it
	do    func(ctx context.Context, c *call, user mxid.UserID) error
}

// addTo adds the flags of the change.
func (u *userChange) addTo(f *flags) {
	f.addDurability()
	f.BoolVar(&u.yes, "yes", false, "do it; without it nothing is changed")
	f.StringVar(&u.save, "save", "", "`FILE` for what was there, which holds pushkeys (no file: none is kept)")
}

// run checks and saves what is stored for the user, and then makes the change.
func (u *userChange) run(ctx context.Context, c *call) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	records, err := c.recordsOfUser(ctx, user)
	if err != nil {
		return err
	}
	if err := u.check(c, user, records); err != nil {
		return err
	}
	if !u.yes {
		_, err := fmt.Fprintf(c.out, "would %s %s, who has %s (-yes does it)\n", u.what, printable(string(user)), describe(records))
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
	_, err = fmt.Fprintf(c.out, "done: %s %s, who had %s\n", u.what, printable(string(user)), describe(records))
	return err
}

// recordsOfUser reads what is stored for a user.
func (c *call) recordsOfUser(ctx context.Context, user mxid.UserID) ([]record, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	values, err := c.readValues(ctx, c.client, []string{c.keys.Rules(user), c.keys.Pushers(user)})
	if err != nil {
		return nil, err
	}
	records, others := recordsOf(values)
	if others > 0 {
		return nil, errors.New("a key of the user is of another type: look at it by hand")
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

// saveRecords writes an archive.
func (c *call) saveRecords(name string, records []record) error {
	a, err := createArchive(name, c.backend)
	if err != nil {
		return err
	}
	return errors.Join(a.add(records...), a.end(), a.file.Close())
}

func resetCommand() command {
	return command{
		name: "reset", args: "USER",
		summary: "gives a user the default push rules",
		about: "Replaces the push rules of a user, readable or not, by the default ones; the user's clients notice at\n" +
			"their next sync. Pushers stay. A user who has no push rules is refused, unless -create is given: the id\n" +
			"may be mistyped. Without -yes it only tells what it would do. What was there is first written to a\n" +
			"file, from which import -overwrite brings it back.",
		setup: func(f *flags) runner {
			u := &userChange{what: "give the default push rules to", do: resetRules}
			create := f.Bool("create", false, "also give them to a user who has no push rules")
			u.check = func(c *call, user mxid.UserID, there []record) error {
				if *create || slices.ContainsFunc(there, func(r record) bool { return r.event != nil }) {
					return nil
				}
				return fmt.Errorf("%s has %s under -key-prefix %q, so that there is nothing to reset (-create gives them push rules)",
					printable(string(user)), describe(there), c.keys.Prefix)
			}
			f.addDefaultRules()
			u.addTo(f)
			return u.run
		},
	}
}

// resetRules gives a user the default rules. An event that cannot be read is replaced
// only as it was seen.
func resetRules(ctx context.Context, c *call, user mxid.UserID) error {
	defaults := c.defaults.For(user)
	_, err := c.rules.Update(ctx, user, func(rules *pushrule.Ruleset, _ bool) error {
		*rules = defaults
		return nil
	})
	if fault.KindOf(err) != fault.Database {
		return err
	}
	reading, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	text, err := c.client.Get(reading, c.keys.Rules(user)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return ifDone(c.rules.Replace(ctx, user, &text, eventOf(defaults)))
}

func forgetCommand() command {
	return command{
		name: "forget", args: "USER",
		summary: "removes all that is stored for a user",
		about: "Removes the push rules and pushers of a user, readable or not, and what the index of pushkeys has of\n" +
			"them, as the hosts do when a user is deactivated, and has the hosts drop what waits for the pushers. An\n" +
			"active user gets the default rules again at the next request. Without -yes it only tells what it would\n" +
			"do. Exit status 1 says that nothing is stored for the user: the id may be mistyped.",
		setup: func(f *flags) runner {
			u := &userChange{what: "forget", check: checkForget, do: forgetUser}
			u.addTo(f)
			return u.run
		},
	}
}

// checkForget says so where nothing is stored for the user.
func checkForget(c *call, user mxid.UserID, there []record) error {
	if len(there) > 0 {
		return nil
	}
	_, err := fmt.Fprintf(c.out, "%s has %s under -key-prefix %q, so that there is nothing to forget\n",
		printable(string(user)), describe(there), c.keys.Prefix)
	return errors.Join(err, errProblems)
}

func forgetUser(ctx context.Context, c *call, user mxid.UserID) error {
	if err := c.host.ForgetUser(ctx, user); err != nil {
		return err
	}
	return (&deliveryCall{call: c}).forgetBacklogs(ctx, user)
}
