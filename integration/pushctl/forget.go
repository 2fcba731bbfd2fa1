package main

import (
	"context"
	"flag"

	"github.com/pushfx/pushfx/module/mxid"
)

// anyUser accepts a user who has nothing, too: their claims may be left.
func anyUser(mxid.UserID, []record) error { return nil }

func forgetCommand() command {
	return command{
		name: "forget", args: "USER",
		summary: "removes all that is stored for a user",
		about: "Removes the push rules and pushers of a user, readable or not, and what the index of pushkeys has of\n" +
			"them, as the hosts do when a user is deactivated, and has the hosts drop what waits for the pushers. An\n" +
			"active user gets the default rules again at the next request. Without -yes it only tells what it would\n" +
			"do.",
		flags: func(o *options, flags *flag.FlagSet) { o.addUserChange(flags) },
		run: func(ctx context.Context, c *call) error {
			return c.changeUser(ctx, "forget", anyUser, func(ctx context.Context, user mxid.UserID) error {
				if err := c.host.ForgetUser(ctx, user); err != nil {
					return err
				}
				return c.forgetHeld(ctx, user)
			})
		},
	}
}
