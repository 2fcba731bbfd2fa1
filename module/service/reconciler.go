package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// claimAge is the age at which a claim without a pusher is abandoned. A pusher is stored
// within half a minute of its claim, or never.
const claimAge = 10 * time.Minute

// maxReconciled limits the pushkeys of one call.
const maxReconciled = 1000

// reconciler finishes taking pushkeys from other users, if a host died or a store failed
// in between. It drops a claim that has had no pusher at every call for ten minutes; the
// clocks of other hosts do not matter. It is safe for concurrent use.
type reconciler struct{ pushkeys pushkeys }

func newReconciler(stores module.Stores, observer observe.Observer) *reconciler {
	return &reconciler{pushkeys{Stores: stores, observer: observer, unused: newUnusedClaims()}}
}

// reconcile implements [module.HostService.ReconcilePushkeys]. The failure of one pushkey does
// not affect the others. Concurrent calls and requests are harmless, on any host.
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

// unusedClaims records when this host first saw a claim to a pending pushkey without a
// pusher, by its monotonic clock.
type unusedClaims struct {
	mu    sync.Mutex
	since map[pusher.Digest]map[pusher.Owner]time.Time
}

func newUnusedClaims() *unusedClaims {
	return &unusedClaims{since: map[pusher.Digest]map[pusher.Owner]time.Time{}}
}

// observe records the claims to a key that have no pusher now. It returns as abandoned
// the claims without a pusher for claimAge; pending reports whether a younger claim has
// no pusher.
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
		since[claim] = first // including abandoned ones, until they are dropped
		if now.Sub(first) >= claimAge {
			abandoned = append(abandoned, claim)
		} else {
			pending = true
		}
	}
	c.since[key] = since
	return abandoned, pending
}

func (c *unusedClaims) keepOnly(pending []module.PendingPushkey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := make(map[pusher.Digest]map[pusher.Owner]time.Time, len(pending))
	for _, u := range pending {
		kept[u.Key] = c.since[u.Key]
	}
	c.since = kept
}
