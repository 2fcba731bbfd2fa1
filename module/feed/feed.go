// Package feed watches the stores for changes of rules and pushers; its API may change at any
// time, except [Config] and [Feed]. After a change it calls the listeners, wakes the user's
// waiting syncs, and forgets what the host has cached of the user.
package feed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/retry"
)

// Feed keeps the versions and compiled push rules of users, and their pushers, until they
// change. It wakes waiting syncs at changes of rules, and notifies the listeners.
//
// It learns of changes from the watches of the stores. A change drops what the feed keeps of
// the user; see [cache]. When a watch begins, changes may have been missed: the listeners are
// told so. Messages can be lost, too: pushers are read again after a while, and versions of
// rules are compared with the store periodically, and when a watch begins. A difference is a
// change. A change by this host drops the cached value before its request ends.
//
// It is safe for concurrent use. Nothing is kept, and nobody is notified, unless [Feed.Run]
// runs.
type Feed struct {
	cfg      Config
	observer observe.Observer
	counters feedCounters

	ruleStore     module.RuleStore
	rules         cache[userRules]
	compiled      *match.Cache
	ruleListeners []*listenerQueue
	syncs         waitingSyncs

	pusherStore     module.PusherWatcher // nil if the store is none
	pushers         cache[pusher.List]
	pusherListeners []*listenerQueue
	wantPushers     func() // wants the watch of pushers
	pushersWanted   chan struct{}

	begun chan struct{} // has a value when a watch of rules has begun
}

// Listeners are notified by a [Feed].
type Listeners struct {
	Rules   []module.ChangeListener
	Pushers []module.PusherListener
}

// New returns a feed of the changes in stores. The observer, which may be nil, gets the
// delay of notifications, each [ListenerPanic] and, once for each outage, the error of a
// watch. New fails if cfg is invalid, or if there is a [module.PusherListener] and the
// pusher store is no [module.PusherWatcher].
func New(stores module.Stores, cfg Config, observer observe.Observer, listeners Listeners) (*Feed, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("feed: %w", err)
	}
	f := &Feed{
		cfg: cfg, observer: observe.Or(observer),
		ruleStore: stores.Rules, compiled: match.NewCache(cfg.MaxCachedRules), rules: newCache(cfg.MaxBytes/2, userRules.bytes),
		pushers: newCache(cfg.MaxBytes/2, pusherBytes), pushersWanted: make(chan struct{}),
		begun: make(chan struct{}, 1),
	}
	f.pushers.maxAge = min(cfg.Recheck, pushersAge)
	f.syncs.waiting, f.syncs.failed = map[mxid.UserID]map[*waitingSync]struct{}{}, make(chan struct{}, 1)
	f.wantPushers = sync.OnceFunc(func() { close(f.pushersWanted) })
	f.pusherStore, _ = stores.Pushers.(module.PusherWatcher)
	for _, l := range listeners.Rules {
		f.ruleListeners = append(f.ruleListeners, f.newQueue(l, l.PushRulesChanged, l.PushRulesMissed))
	}
	for _, l := range listeners.Pushers {
		f.pusherListeners = append(f.pusherListeners, f.newQueue(l, l.PushersChanged, l.PushersMissed))
	}
	if len(listeners.Pushers) == 0 {
		return f, nil
	}
	if f.pusherStore == nil {
		return nil, fmt.Errorf("feed: a PusherListener needs a PusherStore that is a PusherWatcher, and %T is none", stores.Pushers)
	}
	f.wantPushers()
	return f, nil
}

// Run watches the stores and calls the listeners until ctx ends. It returns when all
// its goroutines, including calls of listeners, have ended.
func (f *Feed) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { f.watchRules(ctx) })
	running.Go(func() { f.recheck(ctx) })
	running.Go(func() { f.watchPushers(ctx) })
	for _, queue := range f.queues() {
		running.Go(func() { queue.run(ctx) })
	}
	running.Wait()
}

func (f *Feed) watchRules(ctx context.Context) {
	f.watchRepeatedly(ctx, func() (watched bool, err error) {
		err = fmt.Errorf("feed: watch push rules: %w", f.ruleStore.Watch(ctx, f.beginRules, f.rulesReported))
		return f.rules.end(), err
	})
}

// watchPushers waits until a listener or [Feed.Pushers] wants the watch.
func (f *Feed) watchPushers(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-f.pushersWanted:
	}
	if f.pusherStore == nil {
		return
	}
	f.watchRepeatedly(ctx, func() (watched bool, err error) {
		err = fmt.Errorf("feed: watch pushers: %w", f.pusherStore.Watch(ctx, f.beginPushers, f.pushersReported))
		return f.pushers.end(), err
	})
}

// watchRepeatedly calls watch until ctx ends. Watched reports whether the watch had begun.
func (f *Feed) watchRepeatedly(ctx context.Context, watch func() (watched bool, err error)) {
	first := true
	retry.Repeat(ctx, 100*time.Millisecond, time.Second, func() bool {
		watched, err := watch()
		if (watched || first) && ctx.Err() == nil {
			f.observer.Report(observe.FeedDisconnected, err)
		}
		first = false
		return watched
	})
}

func (f *Feed) beginRules() {
	f.rules.begin()
	for _, queue := range f.ruleListeners {
		queue.miss()
	}
	signal(f.begun)
}

func (f *Feed) beginPushers() {
	f.pushers.begin()
	for _, queue := range f.pusherListeners {
		queue.miss()
	}
}

// rulesReported takes a change from the watch. For a change by this host it comes after
// [Feed.RulesChanged].
func (f *Feed) rulesReported(c module.Change) {
	f.counters.received.Add(1)
	f.rulesAre(c.User, c.Version, c.Made)
	f.notify(f.ruleListeners, c.User, c.Made)
}

// RulesChanged drops the cached rules of a user, unless they are of this version, and
// wakes the user's syncs. The services call it before a change by this host returns, so that
// the host reads its own changes. The listeners learn of them from the watch.
func (f *Feed) RulesChanged(user mxid.UserID, version int64) { f.rulesAre(user, version, time.Now()) }

// rulesAre makes way for rules that may be news.
func (f *Feed) rulesAre(user mxid.UserID, version int64, made time.Time) {
	if f.rules.drop(user, func(r userRules) bool { return r.version != version }) {
		f.wakeSyncs(user, version, made)
	}
}

func (f *Feed) wakeSyncs(user mxid.UserID, version int64, made time.Time) {
	if f.syncs.wake(user, version) {
		f.reached(made)
	}
}

// RulesForgotten drops the cached rules of a user without stored ones.
func (f *Feed) RulesForgotten(user mxid.UserID) {
	f.rules.drop(user, func(userRules) bool { return true })
}

func (f *Feed) pushersReported(c module.PusherChange) {
	f.counters.received.Add(1)
	f.PushersChanged(c.User)
	if !c.Repeated {
		f.notify(f.pusherListeners, c.User, time.Time{})
	}
}

// PushersChanged drops a user's cached pushers. The services call it before a change by this
// host returns, so that the host reads its own changes.
func (f *Feed) PushersChanged(user mxid.UserID) {
	f.pushers.drop(user, func(pusher.List) bool { return true })
}

func (f *Feed) notify(queues []*listenerQueue, user mxid.UserID, made time.Time) {
	for _, queue := range queues {
		queue.put(user, made)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
