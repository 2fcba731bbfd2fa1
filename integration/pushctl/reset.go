package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func resetCommand() command {
	return command{
		name: "reset", args: "USER",
		summary: "gives a user the default push rules",
		about: "Replaces the push rules of a user, readable or not, by the default ones; the user's clients notice at\n" +
			"their next sync. Pushers stay. A user who has no push rules is refused, unless -create is given: the id\n" +
			"may be mistyped. Without -yes it only tells what it would do. What was there is first written to a\n" +
			"file, from which import -overwrite brings it back.",
		flags: func(o *options, flags *flag.FlagSet) {
			o.addDefaultRules(flags)
			o.addUserChange(flags)
			flags.BoolVar(&o.create, "create", false, "also give them to a user who has no push rules")
		},
		run: func(ctx context.Context, c *call) error {
			return c.changeUser(ctx, "give the default push rules to", c.checkReset, c.reset)
		},
	}
}

// addUserChange is for commands that take something away from a user.
func (o *options) addUserChange(flags *flag.FlagSet) {
	o.addDurability(flags)
	flags.BoolVar(&o.yes, "yes", false, "do it; without it nothing is changed")
	flags.StringVar(&o.save, "save", "", "`FILE` for what was there, which holds pushkeys (no file: none is kept)")
}

// checkReset refuses a user who has no push rules.
func (c *call) checkReset(user mxid.UserID, records []record) error {
	hasRules := slices.ContainsFunc(records, func(r record) bool { return r.event != nil })
	if hasRules || c.create {
		return nil
	}
	return fmt.Errorf("%s has %s under -key-prefix %q, so that there is nothing to reset (-create gives them push rules)",
		printable(string(user)), describe(records), c.keys.Prefix)
}

// changeUser checks and saves what is stored for the user, and then does
// something to it.
func (c *call) changeUser(ctx context.Context, what string, check func(mxid.UserID, []record) error, do func(context.Context, mxid.UserID) error) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	records, err := c.recordsOfUser(ctx, user)
	if err != nil {
		return err
	}
	if err := check(user, records); err != nil {
		return err
	}
	if !c.yes {
		_, err := fmt.Fprintf(c.out, "would %s %s, who has %s (-yes does it)\n", what, printable(string(user)), describe(records))
		return err
	}
	if c.save != "" {
		if err := c.saveRecords(records); err != nil {
			return fmt.Errorf("-save: %w", err)
		}
	}
	if err := do(ctx, user); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "done: %s %s, who had %s\n", what, printable(string(user)), describe(records))
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
	records, leftOut := recordsOf(values)
	if leftOut > 0 {
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
func (c *call) saveRecords(records []record) (err error) {
	file, err := os.OpenFile(c.save, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Sync(), file.Close()) }()
	archive, err := newArchive(file, c.backend)
	for _, r := range records {
		var text bytes.Buffer
		if err == nil {
			err = r.appendLine(&text)
		}
		if err == nil {
			err = archive.write(text.Bytes(), 1)
		}
	}
	if err == nil {
		err = archive.end()
	}
	return err
}

// reset gives a user the default rules. An event that cannot be read is replaced
// only as it was seen.
func (c *call) reset(ctx context.Context, user mxid.UserID) error {
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
