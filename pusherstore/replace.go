package pusherstore

import (
	"context"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// Replace replaces a hash if exactly the old fields are stored; without old fields, it
// creates the hash. Done is false if other fields are stored. It serves repairs that
// [Store.Update] cannot make: removing unreadable pushers, and restoring a copy byte
// for byte.
//
// The hash gets a new revision, with a version above both versions, so that writes
// prepared for either hash fail. The caller must update the index; see
// [service.Repairs.Record].
//
// Errors: [module.Unavailable], after which the hash may have been replaced.
func (s *Store) Replace(ctx context.Context, user mxid.UserID, old, next map[string]string) (done bool, err error) {
	c := change{old: old}
	for field, text := range next {
		if was, found := old[field]; field != stored.RevisionField && (!found || was != text) {
			c.sets = append(c.sets, field, text)
		}
	}
	for field := range old {
		if _, stays := next[field]; !stays && field != stored.RevisionField {
			c.deletes = append(c.deletes, field)
		}
	}
	base := stored.ReadRevision(next[stored.RevisionField])
	if before := stored.ReadRevision(old[stored.RevisionField]); before.Version > base.Version {
		base = before
	}
	exactly := comparison{count: len(old), values: old}
	return s.hashes.Swap(ctx, user, base, func(revision stored.Revision) []any {
		return s.args(c, exactly, stored.Message(user, revision.Version), encode(revision))
	})
}

// Reset replaces the entry of a pushkey by one without sets if exactly the old text is
// stored, which may be unreadable. Done is false if another text is stored. All stored
// pushers of the pushkey are visible then. Errors: as for [Store.Replace].
func (x *Index) Reset(ctx context.Context, key pusher.Digest, old string) (done bool, err error) {
	return x.entries.Swap(ctx, stored.Keys{}.Pushkey(key), stored.Revision{}, func(revision stored.Revision) []any {
		u := commit.Update[pusher.Entry, string]{Old: entrySnapshot{Found: true, Raw: old}, Revision: revision}
		return x.prepareEntry(u).Args
	})
}
