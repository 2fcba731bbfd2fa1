package pusherstore

import (
	"context"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// Replace stores the fields of a hash if exactly the old ones are stored, or
// nothing if those are empty; done is false if something else is. It does what
// [Store.Update] cannot: it removes what cannot be read, and restores what was
// stored once, byte for byte.
//
// The hash gets a new revision with a version above those of both, so that no
// request that was prepared for either takes effect any more. The caller brings
// the index up to date: see [module.Repairs.Record].
//
// Errors: [module.Unavailable], after which it may be stored or not.
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
	onto := stored.ReadRevision(next[stored.RevisionField])
	if before := stored.ReadRevision(old[stored.RevisionField]); before.Version > onto.Version {
		onto = before
	}
	exactly := comparison{count: len(old), values: old}
	return s.hashes.Swap(ctx, user, onto, func(revision stored.Revision) []any { return c.args(exactly, revision) })
}

// Reset removes all claims to a pushkey if exactly the old text is stored, which
// need not be readable; done is false if something else is.
// [module.Repairs.Record] restores the claims of stored pushers. Errors: as
// [Store.Replace].
func (x *Index) Reset(ctx context.Context, key pusher.Digest, old string) (done bool, err error) {
	return x.claims.Swap(ctx, stored.Keys{}.Claims(key), stored.Revision{}, func(revision stored.Revision) []any {
		u := commit.Update[pusher.Claims, string]{Old: commit.Snapshot[pusher.Claims, string]{Found: true, Raw: old}, Revision: revision}
		return prepareClaims(u).Args
	})
}
