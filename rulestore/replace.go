package rulestore

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// Replace stores an event if exactly the old one is stored, or nothing if that is
// nil; done is false if something else is. It does what [Store.Update] cannot: it
// replaces an event that cannot be read, and restores one from a copy, in
// whatever form, with all its members.
//
// The event gets a new revision with a version above those of both. So no request
// that was prepared for either takes effect any more, and syncs notice. An event
// that cannot be read has no place for a revision and is stored as it is.
//
// Errors: [module.Unavailable], after which it may be stored or not.
func (s *Store) Replace(ctx context.Context, user mxid.UserID, old *string, text string) (done bool, err error) {
	next, unreadable := stored.ReadEvent(text)
	onto := next.Revision
	if unreadable != nil {
		onto = stored.LastRevision(text)
	}
	if old != nil {
		if before := stored.LastRevision(*old); before.Version > onto.Version {
			onto = before
		}
	}
	return s.events.Swap(ctx, user, onto, func(revision stored.Revision) []any {
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
