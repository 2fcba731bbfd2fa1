package rulestore

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// Replace replaces an event if exactly the old text is stored; with a nil old text, it
// creates the event. Done is false if another text is stored. It serves repairs that
// [Store.Update] cannot make: replacing an unreadable event, and restoring a copy with
// all its members.
//
// The event gets a new revision, with a version above both versions. So syncs notice
// the change, and writes prepared for either event fail. An unreadable text is stored
// without a new revision.
//
// Errors: [module.Unavailable], after which the event may have been replaced.
func (s *Store) Replace(ctx context.Context, user mxid.UserID, old *string, text string) (done bool, err error) {
	next, unreadable := stored.ReadEvent(text)
	base := next.Revision
	if unreadable != nil {
		base = stored.LastRevision(text)
	}
	if old != nil {
		if before := stored.LastRevision(*old); before.Version > base.Version {
			base = before
		}
	}
	return s.events.Swap(ctx, user, base, func(revision stored.Revision) []any {
		args := []any{text, s.channel, stored.Message(user, revision.Version)}
		if unreadable == nil {
			args[0] = next.Text(revision)
		}
		if old != nil {
			args = append(args, *old)
		}
		return args
	})
}
