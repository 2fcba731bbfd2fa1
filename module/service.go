package module

import (
	"context"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/retry"
)

// Service is the domain service, built once: [Service.Rules] and
// [Service.Pushers] are what the endpoints call, [Service.Host] and
// [Service.Sync] what the host's own code calls. It is safe for concurrent use.
type Service struct {
	rules    *ruleService
	pushers  *pusherService
	feed     *Feed
	imports  *importer
	observer observe.Observer
}

// Stores are where a [Service] keeps its data.
type Stores struct {
	Rules    RuleStore
	Pushers  PusherStore
	Pushkeys PushkeyIndex

	// Now is the clock of the stores, by which claims to pushkeys are numbered, so
	// that a claim comes after those that somebody has deleted before it. Nil is
	// the host's own.
	Now func() time.Time
}

// time is the time by the clock of the stores.
func (s Stores) time() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// Options are what a [Service] depends on beside its stores.
type Options struct {
	Defaults pushrule.Defaults // server-default rules; the zero value has those of the specification
	Limits   pushrule.Limits   // of what users store in their push rules
	Policy   pusher.Policy     // which pushers may be set
	Accounts Accounts          // nil if the host has none

	// Observer is told of the operations of the stores, whoever has made them, of rule
	// sets that are created and repaired, of an [ImportRefused], and why pushkeys could
	// not be reconciled; the next try is after half a minute. Nil is none.
	Observer observe.Observer

	// ImportSource has users who are to be imported at their first use; nil if the
	// host has none.
	ImportSource ImportSource
}

// NewService returns a service on stores. The feed observes what the service changes.
// It does no I/O and starts nothing; see [Service.Run].
func NewService(stores Stores, feed *Feed, o Options) *Service {
	observer := observe.Or(o.Observer)
	stores = stores.observed(observer)
	imports := &importer{accounts: o.Accounts, source: o.ImportSource, observer: observer}
	imports.present.users.Limit = maxPresent
	imports.rules = &ruleService{
		store: stores.Rules, feed: feed, accounts: o.Accounts, imports: imports,
		defaults: o.Defaults, limits: o.Limits, observer: observer,
	}
	imports.pushers = &pusherService{
		store: stores.Pushers, pushkeys: pushkeys{Stores: stores}, reconciler: newReconciler(stores),
		policy: o.Policy, accounts: o.Accounts, imports: imports,
	}
	return &Service{
		rules: imports.rules, pushers: imports.pushers, imports: imports,
		feed: feed, observer: observer,
	}
}

// Rules returns the push rule operations.
func (s *Service) Rules() RuleService { return s.rules }

// Pushers returns the pusher operations.
func (s *Service) Pushers() PusherService { return s.pushers }

// Host returns what the host's own code calls. Rules is what the endpoints call:
// [Service.Rules], or what the host has wrapped around it; single users' rules
// are read through it.
func (s *Service) Host(rules RuleService) HostService {
	return &hostService{rules: rules, edits: s.rules, pushers: s.pushers, imports: s.imports}
}

// Sync returns what /sync calls. It reads users' rules through rules, in the way
// of [Service.Host].
func (s *Service) Sync(rules RuleService) SyncService {
	return &syncService{rules, s.feed}
}

// reconcileInterval is how often hosts look for pushkeys to reconcile, about.
const reconcileInterval = 30 * time.Second

// Run does what goes on beside requests until ctx ends: it notifies listeners
// of changes, and reconciles the pushkeys that a host which died has left pending.
// It returns when all that it started has ended, calls of listeners included.
func (s *Service) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { s.feed.Run(ctx) })
	running.Go(func() { s.reconcileRepeatedly(ctx) })
	running.Wait()
}

func (s *Service) reconcileRepeatedly(ctx context.Context) {
	for retry.Sleep(ctx, retry.Jitter(reconcileInterval)) == nil {
		err := s.pushers.reconciler.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			s.observer.Report(observe.PushkeysPending, err)
		}
	}
}
