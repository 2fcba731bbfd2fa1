package service

import (
	"context"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// ownPushers drops the cached pushers of a user before a change by this host returns, so
// that the host reads its own changes. After an error the change may have been made.
type ownPushers struct {
	module.PusherStore
	changes Changes
}

func (s ownPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	defer s.changes.PushersChanged(user)
	return s.PusherStore.Update(ctx, user, edit)
}

func (s ownPushers) Delete(ctx context.Context, user mxid.UserID) error {
	defer s.changes.PushersChanged(user)
	return s.PusherStore.Delete(ctx, user)
}
