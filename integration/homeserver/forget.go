package main

import (
	"context"
	"errors"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"

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
	host     module.HostService
	log      *zap.Logger
}

func newForgetting(sessions *sessions.Sessions, host module.HostService, log *zap.Logger) *forgetting {
	return &forgetting{sessions, host, log}
}

// deactivate ends the account. The same transaction lists the user, so that a removal that fails is repeated.
func (f *forgetting) deactivate(ctx context.Context, user mxid.UserID) error {
	if err := f.sessions.Deactivate(ctx, user); err != nil {
		return err
	}
	logFailed(f.log, "deactivation", user, f.forget(ctx, user))
	return nil
}

// forget removes what the module stores for a deactivated user.
func (f *forgetting) forget(ctx context.Context, user mxid.UserID) error {
	if err := f.host.ForgetUser(ctx, user); err != nil {
		return err
	}
	return f.sessions.Forgotten(ctx, user)
}

// listed removes the stored data of every listed user.
func (f *forgetting) listed(ctx context.Context) error {
	users, err := f.sessions.ToForget(ctx)
	for _, user := range users {
		err = errors.Join(err, f.forget(ctx, user))
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
