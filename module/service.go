package module

import (
	"context"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// Service is the domain service behind the endpoints and the host's own calls. It is safe
// for concurrent use.
type Service struct {
	rules    *ruleService
	pushers  *pusherService
	feed     *Feed
	imports  *importer
	unread   UnreadStore // may be nil
	observer observe.Observer
}

// NewService returns a service that notifies feed of its changes. It does no I/O and
// starts nothing; see [Service.Run].
func NewService(stores Stores, feed *Feed, o Options) *Service {
	observer := observe.Or(o.Observer)
	stores = stores.observed(observer)
	if feed != nil {
		stores.Pushers = ownPushers{stores.Pushers, &feed.pushers.cache}
	}
	rules := ruleService{
		store: stores.Rules, feed: feed, accounts: o.Accounts,
		defaults: o.Defaults, limits: o.Limits, observer: observer,
	}
	pushers := pusherService{
		store: stores.Pushers, pushkeys: pushkeys{Stores: stores, observer: observer}, reconciler: newReconciler(stores, observer),
		policy: o.Policy, accounts: o.Accounts,
	}
	imports := newImporter(rules, pushers, o)
	if o.ImportSource != nil {
		rules.store, pushers.store = importingRules{stores.Rules, imports}, importingPushers{stores.Pushers, imports}
	}
	return &Service{rules: &rules, pushers: &pushers, imports: imports, unread: stores.Unread, feed: feed, observer: observer}
}

// Rules returns the push rule operations.
func (s *Service) Rules() RuleService { return s.rules }

// Pushers returns the pusher operations.
func (s *Service) Pushers() PusherService { return s.pushers }

// Host returns the calls for the host's own code. It reads single users' rules through
// rules: [Service.Rules], or the host's wrapper of it.
func (s *Service) Host(rules RuleService) HostService {
	return &hostService{rules: rules, edits: s.rules, pushers: s.pushers, imports: s.imports, unread: s.unread}
}

// Sync returns the calls for /sync. It reads through rules, as [Service.Host] does.
func (s *Service) Sync(rules RuleService) SyncService {
	return &syncService{rules, s.feed}
}

const reconcileInterval = 30 * time.Second

// Run does the background work until ctx ends: it runs the feed, and reconciles pushkeys
// that dead hosts left pending. It returns when all its goroutines, including calls of
// listeners, have ended.
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
