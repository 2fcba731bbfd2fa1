package module

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/pusher"
)

// claimAge is how long a claim may have no pusher before it is given up. A pusher
// is stored within half a minute of its claim, or never.
const claimAge = 10 * time.Minute

// maxReconciled bounds how much one call of [reconciler.reconcile] does.
const maxReconciled = 1000

// reconciler finishes what was left undone where a host died, or a store failed,
// while a pusher was set that takes a pushkey from other users. It is safe for
// concurrent use.
//
// A claim that has had no pusher for ten minutes is taken back. The reconciler itself
// must have seen it so at every call for that long: what the clocks of other hosts
// say does not matter.
type reconciler struct{ pushkeys pushkeys }

// newReconciler returns a reconciler of the pushkeys in stores.
func newReconciler(stores Stores) *reconciler {
	return &reconciler{pushkeys{Stores: stores, unused: newUnusedClaims()}}
}

// reconcile reconciles what was pending; see [HostService.ReconcilePushkeys]. A pushkey
// that fails does not keep the others from it. It does no harm to requests, or
// other hosts, that do the same at the same time.
func (s *reconciler) reconcile(ctx context.Context) error {
	pending, err := s.pushkeys.Pushkeys.Pending(ctx, time.Time{}, maxReconciled)
	if err != nil {
		return err
	}
	s.pushkeys.unused.keepOnly(pending)
	var failures []error
	for _, u := range pending {
		failures = append(failures, s.pushkeys.reconcilePending(ctx, u))
	}
	return errors.Join(failures...)
}

// unusedClaims remembers since when claims have had no pusher, by the monotonic
// clock of this host, for the pushkeys that are to be reconciled.
type unusedClaims struct {
	mu    sync.Mutex
	since map[pusher.Digest]map[pusher.Owner]time.Time
}

func newUnusedClaims() *unusedClaims {
	return &unusedClaims{since: map[pusher.Digest]map[pusher.Owner]time.Time{}}
}

// observe takes the claims to a key that have no pusher now. It returns those that
// are given up, since they have had none for claimAge; pending reports whether there
// are others.
func (c *unusedClaims) observe(key pusher.Digest, unused []pusher.Owner) (abandoned []pusher.Owner, pending bool) {
	if c == nil {
		return nil, len(unused) > 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, before := time.Now(), c.since[key]
	since := make(map[pusher.Owner]time.Time, len(unused))
	for _, claim := range unused {
		first, found := before[claim]
		if !found {
			first = now
		}
		since[claim] = first // also of those that are given up, until they are taken back
		if now.Sub(first) >= claimAge {
			abandoned = append(abandoned, claim)
		} else {
			pending = true
		}
	}
	c.since[key] = since
	return abandoned, pending
}

// keepOnly forgets claims to keys that are reconciled.
func (c *unusedClaims) keepOnly(pending []PendingPushkey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := make(map[pusher.Digest]map[pusher.Owner]time.Time, len(pending))
	for _, u := range pending {
		kept[u.Key] = c.since[u.Key]
	}
	c.since = kept
}
