package main

import (
	"context"
	"errors"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const forgetEvery = time.Minute

// forgetting deactivates users and removes what the module stores for them. It repeats failed removals, also those of
// other hosts.
type forgetting struct {
	sessions *sessions.Sessions
	rooms    *rooms.Store
	host     module.HostService
	log      *zap.Logger
}

func newForgetting(sessions *sessions.Sessions, rooms *rooms.Store, host module.HostService, log *zap.Logger) *forgetting {
	return &forgetting{sessions, rooms, host, log}
}

// forget removes what the module and the rooms store for a user.
func (f *forgetting) forget(ctx context.Context, user mxid.UserID) error {
	return errors.Join(f.host.ForgetUser(ctx, user), f.rooms.ForgetUser(ctx, user))
}

// deactivate removes the user's data before it ends the account: if the host dies in between, the client can repeat the
// request. It removes data again afterwards, because another device may have stored some meanwhile. A removal that fails
// puts the user on the list of users to forget.
func (f *forgetting) deactivate(ctx context.Context, user mxid.UserID) error {
	if err := f.forget(ctx, user); err != nil {
		logFailed(f.log, "deactivation", user, err)
		if err := f.sessions.ForgetLater(ctx, user); err != nil {
			return err
		}
	}
	if err := f.sessions.Deactivate(ctx, user); err != nil {
		return err
	}
	if err := f.forget(ctx, user); err != nil {
		logFailed(f.log, "deactivation", user, errors.Join(err, f.sessions.ForgetLater(ctx, user)))
	}
	return nil
}

// listed removes the stored data of every listed user.
func (f *forgetting) listed(ctx context.Context) error {
	users, err := f.sessions.ToForget(ctx)
	for _, user := range users {
		again := f.forget(ctx, user)
		if again == nil {
			again = f.sessions.Forgotten(ctx, user)
		}
		err = errors.Join(err, again)
	}
	return err
}

// run calls listed at once and then every minute.
func (f *forgetting) run(ctx context.Context) {
	every := time.NewTicker(forgetEvery)
	defer every.Stop()
	for {
		if err := f.listed(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("deactivated users wait to be forgotten", zap.String("error", fault.Details(err)))
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

func startForgetting(lc fx.Lifecycle, f *forgetting) { runInBackground(lc, f.run) }
