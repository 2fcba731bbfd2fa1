package module_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// What a homeserver with unread counts calls.
func ExampleUnreadService() {
	var unread module.UnreadService // Push.Unread of package pushfx, or out of the fx container
	var notifier module.Notifier
	r := &rooms{unread, notifier, zap.NewExample(), noStream{}}
	_ = r.newEvent
	_ = r.receipt
	_ = r.membershipChanged
	_ = r.redacted
	_ = r.counts
	_ = r.firstSync
}

type rooms struct {
	unread   module.UnreadService
	notifier module.Notifier
	log      *zap.Logger
	stream   interface{ show(at module.Place) }
}

type noStream struct{}

func (noStream) show(module.Place) {}

// newEvent is called from the outbox until it returns nil.
func (r *rooms) newEvent(ctx context.Context, at module.Place, event module.Event, members []match.Member) error {
	event.Position, event.Thread = at.Position, at.Thread
	counting, cancel := context.WithTimeout(ctx, time.Second)
	decisions, err := r.notifier.Decide(counting, event, members)
	if err == nil {
		err = r.unread.Add(counting, at, decisions)
	}
	cancel()
	r.stream.show(at) // in /sync, from now on; after an error, without its count
	if err == nil {
		err = r.notifier.Notify(ctx, event, decisions)
	}
	if err == nil && at.Sender != "" {
		err = r.notifier.UpdateBadges(ctx, at.Sender) // has read the thread
	}
	return err
}

// receipt is called with the position of the event of an m.read or m.read.private.
func (r *rooms) receipt(ctx context.Context, user mxid.UserID, room, thread string, position int64) error {
	if err := r.unread.Read(ctx, user, room, thread, position); err != nil {
		return err
	}
	return r.notifier.UpdateBadges(ctx, user)
}

// membershipChanged is called when a local user joins or leaves, is kicked or banned, or
// rejects an invite.
func (r *rooms) membershipChanged(ctx context.Context, user mxid.UserID, room string, position int64) error {
	return r.receipt(ctx, user, room, module.AllThreads, position)
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

// uncounted is a homeserver's Redis that cannot be reached.
type uncounted struct {
	module.UnreadService
	module.Notifier
	shown, notified bool
}

func (u *uncounted) Decide(context.Context, module.Event, []match.Member) (module.Decisions, error) {
	return nil, nil
}

func (u *uncounted) Add(ctx context.Context, _ module.Place, _ module.Decisions) error {
	if _, found := ctx.Deadline(); !found {
		return nil
	}
	return module.Unavailable(nil)
}

func (u *uncounted) Notify(context.Context, module.Event, module.Decisions) error {
	u.notified = true
	return nil
}

func (u *uncounted) show(module.Place) { u.shown = true }

// The event is shown although it could not be counted. The outbox calls again.
func TestAnEventIsShownWithoutItsCount(t *testing.T) {
	var u uncounted
	r := &rooms{&u, &u, zap.NewNop(), &u}
	if err := r.newEvent(t.Context(), module.Place{Position: 1}, module.Event{}, nil); err == nil || !u.shown || u.notified {
		t.Errorf("error %v, shown is %t, notified is %t", err, u.shown, u.notified)
	}
}
