// Package feed watches the stores for changes, notifies listeners and waiting syncs of
// them, and keeps what a host has read of its users until it changes. Only [Config] and the
// promised packages' use of [Feed] are under semantic versioning.
package feed

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// Feed tracks the versions of users' push rules and notifies [module.ChangeListener]s of changes.
// It also passes changes of pushers on to [module.PusherListener]s, and caches pushers
// ([Feed.Pushers]).
//
// It learns of them from requests of this host, from the store's watch, and, for changes
// that the watch missed, from checks of the store. It reads versions only, never rules. It
// is safe for concurrent use. Changes wait unless [Feed.Run] runs.
//
// For each user it keeps v, the last observed version, for as long as it caches the user's
// compiled rules ([Feed.KeepRules]), and otherwise for a while. V is in one of these states:
//
//	state      reason                             v observed again  a greater version  a smaller version
//	loading    the first load is in progress      -                 notified           -
//	loaded     the first load found v             notified          notified           doubted
//	notified   every listener's queue has v       -                 notified           doubted
//	pending    a listener's queue was full        notified          notified           doubted
//	failed     a sync could not load the rules    notified          notified           doubted
//
// A doubted version keeps its state and is checked with the store at once: versions arrive
// in another order if hosts race, and go back if the store loses changes or another program
// writes. All versions are checked periodically and when a watch begins. If a check finds
// another version, or finds v pending or failed, it notifies the listeners. Waiting syncs
// wake when listeners are notified.
//
// A sync is answered from memory if v is current: it was loaded or checked during the
// present watch, every change since was observed, and it is not doubted. Compiled rules of
// version v, or a later one, are used while v is current.
type Feed struct {
	store     module.RuleStore
	cfg       Config
	observer  observe.Observer
	listeners []*listenerQueue
	pushers   pusherFeed
	counters  feedCounters

	mu       sync.RWMutex
	users    map[mxid.UserID]*observed
	waiting  map[mxid.UserID]map[chan struct{}]struct{} // waiting syncs
	toCheck  map[mxid.UserID]struct{}                   // users to check at once
	checkAll bool                                       // a watch has begun: check all users
	watch    int                                        // the number of the present watch, 0 for none
	watches  int                                        // how many watches have begun

	wake chan struct{} // has a value when a check is due
}

// observed is the last observed version of a user's rules. Every observation replaces
// it, so that a load that began earlier notices.
type observed struct {
	version int64
	state   state
	doubted bool
	watch   int          // the watch during which the version became current, 0 for none
	used    int64        // time of the last request of this host for the user, in Unix seconds
	rules   *match.Entry // the compiled rules, or nil
}

type state int

const (
	loading state = iota
	loaded
	notified
	pending
	failed
)

// owes reports whether a notification is due although the version is the same: a listener's
// queue was full, or a sync could not load the rules.
func (o *observed) owes() bool { return o.state == pending || o.state == failed }

// Listeners are notified by a [Feed].
type Listeners struct {
	Rules   []module.ChangeListener
	Pushers []module.PusherListener
}

// New returns a feed of the changes in stores. The observer, which may be nil, gets the
// delay of notifications, each [ListenerPanic] and, once for each outage, the error of a
// watch. New fails if cfg is invalid, or if
// there is a [module.PusherListener] and the pusher store is no [module.PusherWatcher].
func New(stores module.Stores, cfg Config, observer observe.Observer, listeners Listeners) (*Feed, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("feed: %w", err)
	}
	observer = observe.Or(observer)
	f := &Feed{
		store: stores.Rules, cfg: cfg, observer: observer, wake: make(chan struct{}, 1),
		users: map[mxid.UserID]*observed{}, waiting: map[mxid.UserID]map[chan struct{}]struct{}{},
		toCheck: map[mxid.UserID]struct{}{},
	}
	for _, listener := range listeners.Rules {
		f.listeners = append(f.listeners, f.newRuleQueue(listener))
	}
	if err := f.listenToPushers(stores.Pushers, listeners.Pushers); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Feed) newRuleQueue(listener module.ChangeListener) *listenerQueue {
	return f.newQueue(listener, func(ctx context.Context, c module.Change) {
		f.reached(c)
		listener.PushRulesChanged(ctx, c.User, c.Version)
	}, nil)
}

func (f *Feed) newQueue(listener any, notify func(context.Context, module.Change), missed func(context.Context)) *listenerQueue {
	return &listenerQueue{
		listener: fmt.Sprintf("%T", listener), notify: notify, missed: missed,
		limit: f.cfg.MaxQueued, counters: &f.counters, observer: f.observer,
		filled: make(chan struct{}, 1), latest: map[mxid.UserID]module.Change{},
	}
}

// Stats returns the current counts.
func (f *Feed) Stats() Stats {
	s := Stats{
		Received:  f.counters.received.Load(),
		Rechecked: f.counters.rechecked.Load(),
		Missed:    f.counters.missed.Load(),
		Notified:  f.counters.notified.Load(),
		Dropped:   f.counters.dropped.Load(),
		Panics:    f.counters.panics.Load(),
		Watching:  f.isWatching() && !f.pushers.isDown(),
	}
	for _, queue := range f.queues() {
		s.Waiting += queue.length()
	}
	return s
}

// Run watches the store and calls the listeners until ctx ends. It returns when all
// its goroutines, including calls of listeners, have ended.
func (f *Feed) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { f.watchStore(ctx) })
	running.Go(func() { f.checkStore(ctx) })
	if f.pushers.store != nil {
		running.Go(func() { f.watchPushers(ctx) })
	}
	for _, queue := range f.queues() {
		running.Go(func() { queue.run(ctx) })
	}
	running.Wait()
}

// version returns the user's version, or 0 if it is unknown or not current.
func (f *Feed) version(user mxid.UserID) int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	o, found := f.users[user]
	if !found {
		return 0
	}
	o.use(time.Now())
	if !f.isCurrent(o) {
		return 0
	}
	return o.version
}

// isCurrent reports whether a version is current, see [Feed]. The caller holds the
// lock.
func (f *Feed) isCurrent(o *observed) bool { return f.watch != 0 && o.watch == f.watch && !o.doubted }

// use records, to the second, that a request asks for the user. A read lock is enough.
func (o *observed) use(now time.Time) {
	if at := now.Unix(); atomic.LoadInt64(&o.used) != at { // avoid a write, which other cores would wait for
		atomic.StoreInt64(&o.used, at)
	}
}

// RulesChanged observes a change by a request of this host.
func (f *Feed) RulesChanged(user mxid.UserID, version int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.users[user]; !found {
		f.evict()
	}
	now := time.Now()
	f.observe(module.Change{User: user, Version: version, Made: now})
	f.users[user].use(now)
}

// received observes a change from the watch. A change by this host has been observed
// before, unless its request was cancelled.
func (f *Feed) received(c module.Change) {
	f.counters.received.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.users[c.User]; found || len(f.listeners) > 0 || len(f.waiting[c.User]) > 0 {
		f.observe(c)
	}
}

func (f *Feed) observe(c module.Change) {
	o, found := f.users[c.User]
	switch {
	case !found:
		f.notify(c, observed{})
	case c.Version > o.version, c.Version == o.version && o.state != notified:
		next := *o
		if o.doubted {
			next.watch = 0 // only a load shows which version is current
		}
		f.notify(c, next)
	case c.Version < o.version:
		f.doubt(c.User, *o)
	}
}

// notify wakes syncs and queues a change for the listeners. O is the previous
// observation.
func (f *Feed) notify(c module.Change, o observed) {
	if f.wakeSyncs(c.User) {
		f.reached(c)
	}
	if c.Version != o.version {
		o.rules = nil
	}
	o.version, o.state, o.doubted = c.Version, notified, false
	for _, queue := range f.listeners {
		if !queue.put(c) {
			o.state = pending
		}
	}
	// A user without requests on this host must not evict a user with requests.
	if _, found := f.users[c.User]; found || len(f.users) < f.cfg.MaxUsers {
		f.users[c.User] = &o
	}
}

// doubt requests a check of the user's version.
func (f *Feed) doubt(user mxid.UserID, o observed) {
	o.doubted = true
	f.users[user] = &o
	f.toCheck[user] = struct{}{}
	signal(f.wake)
}

// RulesForgotten forgets a user without rules.
func (f *Feed) RulesForgotten(user mxid.UserID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.users, user)
}

// evict forgets users until the feed can take another: the least recently used of a
// random sample.
func (f *Feed) evict() {
	const some = 8
	for len(f.users) >= f.cfg.MaxUsers {
		var oldest mxid.UserID
		used, looked := int64(math.MaxInt64), 0
		for user, o := range f.users {
			if o.used < used {
				oldest, used = user, o.used
			}
			if looked++; looked == some {
				break
			}
		}
		delete(f.users, oldest)
	}
}

type load struct {
	user   mxid.UserID
	before *observed // when it began
	watch  int
}

// begin must be called before a sync loads a user's rules, and finish after it.
func (f *Feed) begin(user mxid.UserID) load {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.beginLoad(user)
}

func (f *Feed) beginLoad(user mxid.UserID) load {
	o, found := f.users[user]
	if !found {
		f.evict()
		o = &observed{}
		f.users[user] = o
	}
	o.use(time.Now())
	return load{user, o, f.watch}
}

// finish observes the loaded version, and reports whether it is new.
func (f *Feed) finish(l load, version int64) (isNews bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.finishLoad(l, version)
}

func (f *Feed) finishLoad(l load, version int64) (isNews bool) {
	o, found := f.users[l.user]
	switch {
	case !found:
	case o != l.before:
		f.finishOvertaken(l, version, *o)
	case o.state == loading:
		f.users[l.user] = &observed{version: version, state: loaded, watch: l.watch, used: o.used}
	case version == 0 && (o.version != 0 || o.owes()): // the rules are gone
		delete(f.users, l.user)
		f.wakeSyncs(l.user)
	case version != o.version, o.owes():
		next := *o
		next.watch = l.watch
		f.notify(module.Change{User: l.user, Version: version}, next)
		return version != o.version && (o.version != 0 || o.state != failed)
	default:
		o.watch, o.doubted = max(o.watch, l.watch), false
	}
	return false
}

// fail is [Feed.finish] for a failed load. The user is checked after retryCheck, and again
// until the store answers. Then the user's syncs wake.
func (f *Feed) fail(l load) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, found := f.users[l.user]
	if !found || o.state == failed {
		return
	}
	next := *o
	next.state = failed
	f.users[l.user] = &next
	time.AfterFunc(retryCheck, func() { f.checkFailed(l.user, &next) })
}

// checkFailed requests a check of the user unless another version was observed since.
func (f *Feed) checkFailed(user mxid.UserID, since *observed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users[user] == since {
		f.toCheck[user] = struct{}{}
		signal(f.wake)
	}
}

// finishOvertaken is finish for a load during which another version was observed.
// Either of the two versions may be the newer.
func (f *Feed) finishOvertaken(l load, version int64, o observed) {
	switch {
	case version == o.version && !o.doubted:
		f.users[l.user].watch = max(o.watch, l.watch)
	case version != o.version && version != l.before.version:
		f.doubt(l.user, o)
	}
}

// nextChange returns a channel that is closed at the user's next notification, unless ctx
// ends first.
func (f *Feed) nextChange(ctx context.Context, user mxid.UserID) <-chan struct{} {
	changed := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[user] == nil {
		f.waiting[user] = map[chan struct{}]struct{}{}
	}
	f.waiting[user][changed] = struct{}{}
	context.AfterFunc(ctx, func() { f.leave(user, changed) })
	return changed
}

func (f *Feed) leave(user mxid.UserID, changed chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting[user], changed)
	if len(f.waiting[user]) == 0 {
		delete(f.waiting, user)
	}
}

// wakeSyncs reports whether a sync was waiting.
func (f *Feed) wakeSyncs(user mxid.UserID) bool {
	waiting := f.waiting[user]
	for changed := range waiting {
		close(changed)
	}
	delete(f.waiting, user)
	return len(waiting) > 0
}

// reached counts a change that reaches a listener or the user's waiting syncs, and
// reports its delay.
func (f *Feed) reached(c module.Change) {
	f.counters.notified.Add(1)
	if !c.Made.IsZero() {
		f.observer.Took(observe.ChangeLag, observe.PushRules, time.Since(c.Made), true)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
