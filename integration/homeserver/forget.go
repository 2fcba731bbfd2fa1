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

// forgetting removes what the module stores for deactivated users. It repeats failed calls, also calls of hosts that
// died.
type forgetting struct {
	sessions *sessions.Sessions
	host     module.HostService
	log      *zap.Logger
}

func newForgetting(sessions *sessions.Sessions, host module.HostService, log *zap.Logger) *forgetting {
	return &forgetting{sessions, host, log}
}

func (f *forgetting) user(ctx context.Context, user mxid.UserID) error {
	if err := f.host.ForgetUser(ctx, user); err != nil {
		return err
	}
	return f.sessions.Forgotten(ctx, user)
}

// all removes the stored data of every deactivated user that still has some.
func (f *forgetting) all(ctx context.Context) error {
	users, err := f.sessions.ToForget(ctx)
	for _, user := range users {
		err = errors.Join(err, f.user(ctx, user))
	}
	return err
}

// run calls all at once and then every minute.
func (f *forgetting) run(ctx context.Context) {
	every := time.NewTicker(forgetEvery)
	defer every.Stop()
	for {
		if err := f.all(ctx); err != nil && ctx.Err() == nil {
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
