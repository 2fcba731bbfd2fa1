package main

import (
	"slices"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// lookAtKey looks at the claims to a pushkey, and at the pushers of it that were
// read later.
func (l *looking) lookAtKey(c keyClaims, held map[mxid.UserID]pusher.Pusher, lists map[mxid.UserID]module.Result[pusher.List]) {
	faults := module.FaultsOfPushkey(c.Claims, held)
	// Of pushers that cannot be read nobody knows which claims they have.
	faults.GivenUp = slices.DeleteFunc(faults.GivenUp, func(o pusher.Owner) bool {
		return lists[o.User].Err != nil && o.User.Validate() == nil
	})
	for _, claim := range faults.GivenUp {
		l.doubtful = append(l.doubtful, finding{
			kind: claimGivenUp, name: l.nameOf(c.key), detail: detailOf(claim), key: c.key, node: l.node,
			digest: c.digest, claim: claim,
		})
	}
	for _, claim := range faults.TooMany {
		l.doubtful = append(l.doubtful, finding{
			kind: pusherTooMany, name: string(claim.User), detail: l.nameOf(c.key) + ", " + detailOf(claim), key: c.key, node: l.node,
			digest: c.digest, claim: pusher.Owner{User: claim.User, Claim: c.Newest()},
		})
	}
}

// isRefused reports whether a store or service would not do something, as opposed
// to one that could not.
func isRefused(err error) bool {
	kind := fault.KindOf(err)
	return err != nil && kind != fault.Internal && kind != fault.Unavailable
}

// isDamaged reports whether stored data cannot be read.
func isDamaged(err error) bool { return fault.KindOf(err) == fault.Database }
