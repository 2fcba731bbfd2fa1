package main

import (
	"context"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
)

// states are the module's read marks and counts. Events of senders that a user ignores by now are read: the user gets no
// mail about them, and no notification that waits.
type states struct {
	module.Unread
	users *sessions.Sessions
}

func newStates(unread module.Unread, users *sessions.Sessions) module.Unread {
	return states{unread, users}
}

// States implements [module.Unread]. If the ignored users cannot be read, it ignores none.
func (s states) States(ctx context.Context, events []module.UserEvent) []module.Result[module.UnreadState] {
	all := s.Unread.States(ctx, events)
	for i, e := range events {
		if e.Position > 0 && all[i].Err == nil && !all[i].Value.IsRead {
			all[i].Value.IsRead, _ = s.users.IgnoresSender(ctx, e.User, e.Position)
		}
	}
	return all
}
