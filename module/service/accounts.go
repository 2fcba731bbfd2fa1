package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pushfx/pushfx/module"

	"golang.org/x/sync/errgroup"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// isLoggedIn asks the host. Without accounts every device is logged in.
func isLoggedIn(ctx context.Context, accounts module.Accounts, user mxid.UserID, device string) (bool, error) {
	if accounts == nil {
		return true, nil
	}
	loggedIn, err := accounts.LoggedIn(ctx, user, device)
	if err != nil {
		return false, accountsFailed(err)
	}
	return loggedIn, nil
}

func accountsFailed(cause error) error {
	return fault.Wrap(fault.Unavailable, "The server cannot tell which devices are logged in, try again later.",
		fmt.Errorf("accounts: %w", cause))
}

// sessionOf returns the session that a pusher depends on: a pusher of kind email depends
// on the user only.
func sessionOf(user mxid.UserID, p pusher.Pusher) module.Session {
	if p.Kind.IsAddress() {
		return module.Session{User: user}
	}
	return module.Session{User: user, Device: p.Device}
}

func sessionsOf(all map[mxid.UserID]module.Result[pusher.List]) map[module.Session]bool {
	sessions := map[module.Session]bool{}
	for user, loaded := range all {
		for _, p := range loaded.Value.All() {
			sessions[sessionOf(user, p)] = true
		}
	}
	return sessions
}

type sessionStates map[module.Session]module.Result[bool]

// maxAsked is the largest number of concurrent calls to an [module.Accounts] that is no
// [module.BulkAccounts].
const maxAsked = 16

func areLoggedIn(ctx context.Context, accounts module.Accounts, sessions map[module.Session]bool) sessionStates {
	if len(sessions) == 0 {
		return nil
	}
	all := slices.Collect(maps.Keys(sessions))
	if bulk, is := accounts.(module.BulkAccounts); is {
		return bulk.LoggedInMany(ctx, all)
	}
	return askEach(ctx, accounts, all)
}

func askEach(ctx context.Context, accounts module.Accounts, sessions []module.Session) sessionStates {
	results := make([]module.Result[bool], len(sessions))
	var asking errgroup.Group
	asking.SetLimit(maxAsked)
	for i, session := range sessions {
		asking.Go(func() error {
			results[i].Value, results[i].Err = accounts.LoggedIn(ctx, session.User, session.Device)
			return nil
		})
	}
	_ = asking.Wait() // each session has its own error
	all := make(sessionStates, len(sessions))
	for i, session := range sessions {
		all[session] = results[i]
	}
	return all
}

var errNoAnswer = errors.New("no result for a session")

// live returns the user's pushers with a session that is logged in. It fails if the host
// could not answer for a session.
func (s sessionStates) live(user mxid.UserID, list pusher.List) (pusher.List, error) {
	var failed error
	list.Remove(func(p pusher.Pusher) bool {
		result, answered := s[sessionOf(user, p)]
		switch {
		case !answered:
			failed = accountsFailed(errNoAnswer)
		case result.Err != nil:
			failed = accountsFailed(result.Err)
		}
		return !result.Value
	})
	if failed != nil {
		return pusher.List{}, failed
	}
	return list, nil
}
