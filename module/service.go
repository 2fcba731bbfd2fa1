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

// Stores are the stores of a [Service].
type Stores struct {
	Rules    RuleStore
	Pushers  PusherStore
	Pushkeys PushkeyIndex

	// Unread is nil for a host without unread counts. The service only deletes lists of
	// deactivated users.
	Unread UnreadStore

	// Now is the clock of the stores. The service numbers claims to pushkeys by it, so that
	// a new claim has a higher number than a deleted claim. Nil means the host's clock.
	Now func() time.Time
}

func (s Stores) time() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// Options are the options of a [Service].
type Options struct {
	Defaults pushrule.Defaults // default rules; the zero value has those of the specification
	Limits   pushrule.Limits   // limits on users' push rules
	Policy   pusher.Policy     // rules for pushers
	Accounts Accounts          // optional

	// Observer gets all operations of the stores, created and repaired rule sets, each
	// [ImportRefused], and errors of reconciling pushkeys. It may be nil.
	Observer observe.Observer

	// ImportSource may be nil.
	ImportSource ImportSource
}

// NewService returns a service that notifies feed of its changes. It does no I/O and
// starts nothing; see [Service.Run].
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
		rules: imports.rules, pushers: imports.pushers, imports: imports, unread: stores.Unread,
		feed: feed, observer: observer,
	}
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

// Sync returns the calls for /sync; for rules see [Service.Host].
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
