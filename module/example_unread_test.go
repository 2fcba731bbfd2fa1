package module_test

import (
	"context"
	"errors"
	"slices"
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

// newEvent is called from the outbox, with all members as toCount and toNotify, and then with
// the users that module.Left returns for the errors, until nobody is left.
func (r *rooms) newEvent(
	ctx context.Context, at module.Place, event module.Event, members []match.Member, toCount, toNotify []mxid.UserID,
) (uncounted, unnotified error) {
	event.Position, event.Thread = at.Position, at.Thread
	counting, cancel := context.WithTimeout(ctx, time.Second)
	decisions, undecided := r.notifier.Decide(counting, event, members)
	uncounted = errors.Join(undecided, r.unread.Add(counting, at, decisions.Of(toCount)))
	cancel()
	r.stream.show(at) // in /sync, from now on; after an error, without its count
	unnotified = errors.Join(undecided, r.notifier.Notify(ctx, event, decisions.Of(toNotify)))
	if at.Sender != "" {
		unnotified = errors.Join(unnotified, r.notifier.UpdateBadges(ctx, at.Sender)) // has read the thread
	}
	return uncounted, unnotified
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

// uncounted is a homeserver's Redis, in which some users cannot be reached.
type uncounted struct {
	module.UnreadService
	module.Notifier
	shown             bool
	counted, notified []mxid.UserID
}

func (u *uncounted) Decide(_ context.Context, _ module.Event, members []match.Member) (decisions module.Decisions, _ error) {
	for _, m := range members {
		decisions = append(decisions, module.Decision{User: m.User})
	}
	return decisions, nil
}

func (u *uncounted) Add(ctx context.Context, _ module.Place, decisions module.Decisions) error {
	for _, d := range decisions {
		u.counted = append(u.counted, d.User)
	}
	if _, found := ctx.Deadline(); !found {
		return nil
	}
	return &module.LeftError{Users: []mxid.UserID{"@b:x"}, Reasons: []error{module.Unavailable(nil)}}
}

func (u *uncounted) Notify(_ context.Context, _ module.Event, decisions module.Decisions) error {
	for _, d := range decisions {
		u.notified = append(u.notified, d.User)
	}
	return nil
}

func (u *uncounted) show(module.Place) { u.shown = true }

// The event is shown although it could not be counted for a user. The outbox repeats one call for this user.
func TestAnEventIsShownWithoutItsCount(t *testing.T) {
	var u uncounted
	r := &rooms{&u, &u, zap.NewNop(), &u}
	members := []match.Member{{User: "@a:x"}, {User: "@b:x"}}
	failed, unnotified := r.newEvent(t.Context(), module.Place{Position: 1}, module.Event{}, members, []mxid.UserID{"@a:x", "@b:x"}, []mxid.UserID{"@a:x", "@b:x"})
	left, all := module.Left(failed)
	if all || !slices.Equal(left, []mxid.UserID{"@b:x"}) || unnotified != nil || !u.shown || len(u.notified) != 2 {
		t.Errorf("left are %v, all: %t, %v, shown is %t, notified are %v", left, all, unnotified, u.shown, u.notified)
	}
	r.newEvent(t.Context(), module.Place{Position: 1}, module.Event{}, module.MembersOf(members, left), left, nil)
	if !slices.Equal(u.counted, []mxid.UserID{"@a:x", "@b:x", "@b:x"}) || len(u.notified) != 2 {
		t.Errorf("counted are %v, notified %v", u.counted, u.notified)
	}
}
