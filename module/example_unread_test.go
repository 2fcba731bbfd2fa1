package module_test

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// What a homeserver with unread counts calls.
func ExampleUnreadService() {
	var unread module.UnreadService // Push.Unread of package pushfx, or out of the fx container
	var notifier module.Notifier
	r := &rooms{unread, notifier, zap.NewExample()}
	_ = r.receipt
	_ = r.redacted
	_ = r.counts
	_ = r.firstSync
}

type rooms struct {
	unread   module.UnreadService
	notifier module.Notifier
	log      *zap.Logger
}

// receipt is called with the position of the event of an m.read or m.read.private.
func (r *rooms) receipt(ctx context.Context, user mxid.UserID, room, thread string, position int64) error {
	if err := r.unread.Read(ctx, user, room, thread, position); err != nil {
		return err
	}
	return r.notifier.UpdateBadges(ctx, user)
}

// redacted is called with the local members and the position of the redacted event.
func (r *rooms) redacted(ctx context.Context, room string, position int64, members []mxid.UserID) error {
	err := r.unread.Forget(ctx, room, position, members)
	if err == nil && len(members) <= 100 {
		err = r.notifier.UpdateBadges(ctx, members...)
	}
	return err
}

// counts returns the counts of joined rooms after the events of the sync were chosen. Without
// them the sync omits unread_notifications, and the client keeps the last ones.
func (r *rooms) counts(ctx context.Context, user mxid.UserID, rooms []string) map[string]module.RoomCounts {
	counts, err := r.unread.Rooms(ctx, user, rooms...)
	if err != nil {
		r.log.Warn("push: a sync without counts", zap.String("user_id", string(user)), zap.String("error", fault.Details(err)))
	}
	return counts
}

// firstSync is called with all rooms of the user.
func (r *rooms) firstSync(ctx context.Context, user mxid.UserID, joined, invited []string) (map[string]module.RoomCounts, error) {
	err := r.unread.Retain(ctx, user, append(invited, joined...)...)
	counts, failed := r.unread.Rooms(ctx, user)
	return counts, errors.Join(err, failed)
}
