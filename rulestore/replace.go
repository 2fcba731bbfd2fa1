package rulestore

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// Replace stores an event in the place of exactly the old one, nil for none;
// done is false where something else is stored. It is for what [Store.Update]
// cannot do: to replace an event that cannot be read, and to bring back one that
// was stored once, in whatever form, with all that is in it.
//
// The event gets a revision of its own with a version above those of both, so that
// no request that was made for either takes effect any more and syncs notice. One
// that cannot be read, and has no place for a revision, is stored as it is.
//
// Errors: [module.Unavailable], after which it may be stored or not.
func (s *Store) Replace(ctx context.Context, user mxid.UserID, old *string, text string) (done bool, err error) {
	next, unreadable := stored.ReadEvent(text, s.cache)
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
