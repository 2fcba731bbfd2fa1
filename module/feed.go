package module

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// Feed knows which version each user's push rules have, and notifies
// [ChangeListener]s when it changes. It observes the changes of this host when
// they are made, those of other hosts when the store's watch tells of them, and
// those that the watch missed when it checks the store. It never reads rules,
// only versions. It is safe for concurrent use, and works while [Feed.Run] runs;
// before and after that, changes wait.
//
// For each user who syncs here, and for a while for others, it keeps the version
// v that it observed last, in one of these states:
//
//	state      how it came about                  v observed again  a greater version  a smaller version
//	loading    the first load is under way        -                 notified           -
//	loaded     the first load found v             notified          notified           doubted
//	notified   every listener's queue has v       -                 notified           doubted
//	pending    a listener's queue was full        notified          notified           doubted
//
// A version that is doubted keeps its state and is checked with the store at
// once: versions come in another order when hosts race, and go back when the
// store loses changes or somebody else writes. All that is kept is checked from
// time to time, and when a watch begins. A check that finds another version than
// v, or that finds v pending, notifies the listeners.
//
// A sync is answered from memory if v is current: it was loaded or checked during
// the watch that still lasts, every change was observed since, and it is not
// doubted.
type Feed struct {
	store     RuleStore
	cfg       FeedConfig
	listeners []*listenerQueue
	counters  feedCounters

	mu       sync.Mutex
	users    map[mxid.UserID]*observed
	toCheck  map[mxid.UserID]struct{} // those to be checked at once
	checkAll bool                     // a watch has begun: all that is kept is to be checked
	watch    int                      // the number of the watch that lasts, 0 for none
	watches  int                      // how many watches have begun

	wake chan struct{} // has a value when a check is due
}

// observed is the version of a user's rules that was observed last. Every
// observation replaces it by another one, so that a load that began before
// notices.
type observed struct {
	version int64
	state   state
	doubted bool
	watch   int       // the watch during which the version became current, 0 for none
	used    time.Time // when a request of this host last asked for the user, or changed something
}

type state int

const (
	loading state = iota
	loaded
	notified
	pending
)

// FeedConfig configures [Feed].
type FeedConfig struct {
	// Recheck is how often the versions of the users who sync here are compared
	// with the store, for changes that the watch has missed. Default 1 minute.
	Recheck time.Duration

	// MaxUsers is how many users' versions are kept, about 200 bytes each.
	// Default 100,000.
	MaxUsers int

	// MaxQueued is how many users' changes may wait for a slow listener, one
	// for each user. Default 10,000.
	MaxQueued int

	// Report gets what goes wrong outside of requests: a [ListenerPanic], or, once
	// for each outage, that the store cannot be watched. Nil ignores it.
	Report func(error)

	// Observer is told of the operations of the store, and how late listeners are
	// notified. Nil is none.
	Observer observe.Observer
}

// DefaultFeedConfig returns the defaults.
func DefaultFeedConfig() FeedConfig {
	return FeedConfig{Recheck: time.Minute, MaxUsers: 100_000, MaxQueued: 10_000}
}

// Validate joins an error for each field that is not as its comment says.
func (c FeedConfig) Validate() error {
	var faults []error
	if c.Recheck <= 0 {
		faults = append(faults, fmt.Errorf("FeedConfig.Recheck is %v, want above 0", c.Recheck))
	}
	if c.MaxUsers < 1 {
		faults = append(faults, fmt.Errorf("FeedConfig.MaxUsers is %d, want at least 1", c.MaxUsers))
	}
	if c.MaxQueued < 1 {
		faults = append(faults, fmt.Errorf("FeedConfig.MaxQueued is %d, want at least 1", c.MaxQueued))
	}
	return errors.Join(faults...)
}

const (
	// interest is for how long a user is kept after the last request for them.
	interest = 10 * time.Minute

	// maxCheck is how many users' versions are asked for at a time.
	maxCheck = 500

	// retryCheck is after what time a check that failed is made again.
	retryCheck = time.Second
)

// NewFeed returns the feed of the changes in store. It fails if cfg is not
// valid.
func NewFeed(store RuleStore, cfg FeedConfig, listeners ...ChangeListener) (*Feed, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	if cfg.Report == nil {
		cfg.Report = func(error) {}
	}
	cfg.Observer = observe.Or(cfg.Observer)
	f := &Feed{
		store: observeRules(store, cfg.Observer), cfg: cfg, wake: make(chan struct{}, 1),
		users: map[mxid.UserID]*observed{}, toCheck: map[mxid.UserID]struct{}{},
	}
	for _, listener := range listeners {
		f.listen(listener)
	}
	return f, nil
}

// listen adds a listener. It must not be called once [Feed.Run] runs.
func (f *Feed) listen(listener ChangeListener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = append(f.listeners, newListenerQueue(listener, f))
}

// Run watches the store and calls the listeners until ctx ends. It returns when
// everything that it started has ended, the calls of listeners included.
func (f *Feed) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { f.watchStore(ctx) })
	running.Go(func() { f.checkStore(ctx) })
	for _, queue := range f.listeners {
		running.Go(func() { queue.run(ctx) })
	}
	running.Wait()
}

// version returns the version that is stored, as far as is known, and 0 if none
// is current.
func (f *Feed) version(user mxid.UserID) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, found := f.users[user]
	if !found {
		return 0
	}
	o.used = time.Now()
	if f.watch == 0 || o.watch != f.watch || o.doubted {
		return 0
	}
	return o.version
}

// changed observes a change that a request of this host has made.
func (f *Feed) changed(user mxid.UserID, version int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.users[user]; !found {
		f.makeRoom()
	}
	now := time.Now()
	f.observe(Change{user, version, now})
	f.users[user].used = now
}

// heard observes a change that the watch tells of. It may be one of this host,
// which was observed before unless its request has gone away.
func (f *Feed) heard(c Change) {
	f.counters.heard.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.users[c.User]; found || len(f.listeners) > 0 {
		f.observe(c)
	}
}

func (f *Feed) observe(c Change) {
	o, found := f.users[c.User]
	switch {
	case !found:
		f.notify(c, observed{})
	case c.Version > o.version, c.Version == o.version && o.state != notified:
		next := *o
		if o.doubted {
			next.watch = 0 // what is current, only a load can say
		}
		f.notify(c, next)
	case c.Version < o.version:
		f.doubt(c.User, *o)
	}
}

// notify queues a change for the listeners. O is what was observed until now.
func (f *Feed) notify(c Change, o observed) {
	o.version, o.state, o.doubted = c.Version, notified, false
	for _, queue := range f.listeners {
		if !queue.put(c) {
			o.state = pending
		}
	}
	// Users who do not sync here take nobody's place.
	if _, found := f.users[c.User]; found || len(f.users) < f.cfg.MaxUsers {
		f.users[c.User] = &o
	}
}

// doubt has the version of a user checked at once.
func (f *Feed) doubt(user mxid.UserID, o observed) {
	o.doubted = true
	f.users[user] = &o
	f.toCheck[user] = struct{}{}
	signal(f.wake)
}

// forget is for a user whose rules are gone.
func (f *Feed) forget(user mxid.UserID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.users, user)
}

// makeRoom forgets users until there is room for another.
func (f *Feed) makeRoom() {
	for user := range f.users {
		if len(f.users) < f.cfg.MaxUsers {
			return
		}
		delete(f.users, user)
	}
}

// load is one of a user's version that is under way.
type load struct {
	user   mxid.UserID
	before *observed // when it began
	watch  int
}

// begin is to be called before a sync loads a user's rules, and finish after it.
func (f *Feed) begin(user mxid.UserID) load {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, found := f.users[user]
	if !found {
		f.makeRoom()
		o = &observed{}
		f.users[user] = o
	}
	o.used = time.Now()
	return load{user, o, f.watch}
}

// finish observes the version that a load found.
func (f *Feed) finish(l load, version int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, found := f.users[l.user]
	switch {
	case !found:
	case o != l.before:
		f.finishOvertaken(l, version, *o)
	case version == 0:
		delete(f.users, l.user)
	case o.state == loading:
		f.users[l.user] = &observed{version: version, state: loaded, watch: l.watch, used: o.used}
	case version != o.version, o.state == pending:
		next := *o
		next.watch = l.watch
		f.notify(Change{User: l.user, Version: version}, next)
	default:
		o.watch, o.doubted = max(o.watch, l.watch), false
	}
}

// finishOvertaken is finish for a load during which something else was observed,
// so that it is not known which of the two came first.
func (f *Feed) finishOvertaken(l load, version int64, o observed) {
	switch {
	case version == o.version && !o.doubted:
		f.users[l.user].watch = max(o.watch, l.watch)
	case version != o.version && version != l.before.version:
		f.doubt(l.user, o)
	}
}

// watchStore keeps watching the store.
func (f *Feed) watchStore(ctx context.Context) {
	const shortest, longest = 100 * time.Millisecond, time.Second
	wait := shortest
	for first := true; ; first = false {
		err := f.store.Watch(ctx, f.beginWatch, f.heard)
		watched := f.endWatch()
		if ctx.Err() != nil {
			return
		}
		if watched {
			wait = shortest
		}
		if watched || first {
			f.cfg.Report(fmt.Errorf("module: watch push rules: %w", err))
		}
		if !pause(ctx, wait/2+rand.N(wait)) {
			return
		}
		wait = min(2*wait, longest)
	}
}

// beginWatch makes everything that was observed before stale: changes may have
// been missed.
func (f *Feed) beginWatch() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches++
	f.watch = f.watches
	f.checkAll = true
	signal(f.wake)
}

// endWatch reports whether there was a watch.
func (f *Feed) endWatch() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	watched := f.watch != 0
	f.watch = 0
	return watched
}

func (f *Feed) isWatching() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watch != 0
}

// checkStore compares versions with the store: all from time to time and when a
// watch begins, those that are doubted at once.
func (f *Feed) checkStore(ctx context.Context) {
	timer := time.NewTimer(f.untilRecheck())
	defer timer.Stop()
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(f.untilRecheck())
			all = true
		case <-f.wake:
		}
		if failed := f.check(ctx, f.due(all)); len(failed) > 0 {
			f.checkAgain(failed)
			if !pause(ctx, retryCheck) {
				return
			}
		}
	}
}

func (f *Feed) untilRecheck() time.Duration {
	return f.cfg.Recheck/2 + rand.N(f.cfg.Recheck)
}

// due returns the users who are to be checked: all, or those who are to be
// checked at once. It forgets those for whom nobody has asked for long.
func (f *Feed) due(all bool) []mxid.UserID {
	f.mu.Lock()
	defer f.mu.Unlock()
	users := f.toCheck
	f.toCheck = map[mxid.UserID]struct{}{}
	if !all && !f.checkAll {
		return slices.Collect(maps.Keys(users))
	}
	f.checkAll = false
	maps.DeleteFunc(f.users, func(_ mxid.UserID, o *observed) bool {
		return !o.doubted && o.state != pending && time.Since(o.used) > interest
	})
	return slices.Collect(maps.Keys(f.users))
}

// check compares the versions of users with the store, and returns those that
// it could not get.
func (f *Feed) check(ctx context.Context, users []mxid.UserID) (failed []mxid.UserID) {
	for len(users) > 0 {
		some := users[:min(len(users), maxCheck)]
		users = users[len(some):]
		loads := f.beginChecks(some)
		unavailable := f.finishChecks(loads, f.store.Versions(ctx, some))
		failed = append(failed, unavailable...)
		if len(unavailable) > 0 && len(unavailable) == len(loads) { // the store is gone
			return append(failed, users...)
		}
	}
	return failed
}

// beginChecks is begin for the users who are still kept.
func (f *Feed) beginChecks(users []mxid.UserID) []load {
	f.mu.Lock()
	defer f.mu.Unlock()
	loads := make([]load, 0, len(users))
	for _, user := range users {
		if o, found := f.users[user]; found {
			loads = append(loads, load{user, o, f.watch})
		}
	}
	return loads
}

// finishChecks is finish for many users. It returns those whose versions the
// store could not tell.
func (f *Feed) finishChecks(loads []load, versions map[mxid.UserID]Result[int64]) (unavailable []mxid.UserID) {
	f.counters.rechecked.Add(int64(len(loads)))
	for _, l := range loads {
		switch version := versions[l.user]; {
		case version.Err == nil:
			f.finish(l, version.Value)
		case fault.KindOf(version.Err) == fault.Unavailable:
			unavailable = append(unavailable, l.user)
		default: // unreadable, which the next sync says
			f.forget(l.user)
		}
	}
	return unavailable
}

// checkAgain has users checked whose check has failed.
func (f *Feed) checkAgain(users []mxid.UserID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, user := range users {
		f.toCheck[user] = struct{}{}
	}
	signal(f.wake)
}

// pause waits, and reports whether ctx still lasts.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// signal fills a channel that holds one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
