package module

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module/match"
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
// For each user who syncs here, for each whose compiled rules [Feed.KeepRules] was
// given, and for a while for others, it keeps the version
// v that it observed last, in one of these states:
//
//	state      how it came about                  v observed again  a greater version  a smaller version
//	loading    the first load is under way        -                 notified           -
//	loaded     the first load found v             notified          notified           doubted
//	notified   every listener's queue has v       -                 notified           doubted
//	pending    a listener's queue was full        notified          notified           doubted
//	failed     a sync could not load the rules    notified          notified           doubted
//
// A version that is doubted keeps its state and is checked with the store at
// once: versions come in another order when hosts race, and go back when the
// store loses changes or somebody else writes. All that is kept is checked from
// time to time, and when a watch begins. A check that finds another version than
// v, or that finds v pending or failed, notifies the listeners.
//
// Syncs that wait are woken whenever listeners are notified.
//
// A sync is answered from memory if v is current: it was loaded or checked during
// the watch that still lasts, every change was observed since, and it is not
// doubted. Compiled rules are kept with the version that they were read at or
// after, and used while that version is current.
type Feed struct {
	store     RuleStore
	cfg       FeedConfig
	observer  observe.Observer
	listeners []*listenerQueue
	counters  feedCounters

	mu       sync.RWMutex
	users    map[mxid.UserID]*observed
	waiting  map[mxid.UserID]map[chan struct{}]struct{} // of syncs, until they are woken or have ended
	toCheck  map[mxid.UserID]struct{}                   // those to be checked at once
	checkAll bool                                       // a watch has begun: all that is kept is to be checked
	watch    int                                        // the number of the watch that lasts, 0 for none
	watches  int                                        // how many watches have begun

	wake chan struct{} // has a value when a check is due
}

// observed is the version of a user's rules that was observed last. Every
// observation replaces it by another one, so that a load that began before
// notices.
type observed struct {
	version int64
	state   state
	doubted bool
	watch   int          // the watch during which the version became current, 0 for none
	used    int64        // when a request of this host last asked for the user, or changed something, in Unix seconds
	rules   *match.Entry // the compiled rules, nil if they are not kept
}

type state int

const (
	loading state = iota
	loaded
	notified
	pending
	failed
)

// owes reports whether somebody is to be notified, though the version is the same.
func (o *observed) owes() bool { return o.state == pending || o.state == failed }

// NewFeed returns the feed of the changes in store. The observer, nil for none, is told
// of the operations of the store, how late listeners are notified, a [ListenerPanic],
// and, once for each outage, that the store cannot be watched. NewFeed fails if cfg is
// not valid.
func NewFeed(store RuleStore, cfg FeedConfig, observer observe.Observer, listeners ...ChangeListener) (*Feed, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	observer = observe.Or(observer)
	f := &Feed{
		store: observeRules(store, observer), cfg: cfg, observer: observer, wake: make(chan struct{}, 1),
		users: map[mxid.UserID]*observed{}, waiting: map[mxid.UserID]map[chan struct{}]struct{}{},
		toCheck: map[mxid.UserID]struct{}{},
	}
	for _, listener := range listeners {
		f.listeners = append(f.listeners, newListenerQueue(listener, f))
	}
	return f, nil
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

// version returns the user's current version, or 0 if the feed does not have it.
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

// isCurrent is for a caller who holds the lock.
func (f *Feed) isCurrent(o *observed) bool { return f.watch != 0 && o.watch == f.watch && !o.doubted }

// use notes that a request asks for the user, to the second. The caller may share
// the lock.
func (o *observed) use(now time.Time) {
	if at := now.Unix(); atomic.LoadInt64(&o.used) != at { // all cores share what is not written
		atomic.StoreInt64(&o.used, at)
	}
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
	f.users[user].use(now)
}

// heard observes a change that the watch tells of. It may be one of this host,
// which was observed before unless its request has gone away.
func (f *Feed) received(c Change) {
	f.counters.received.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.users[c.User]; found || len(f.listeners) > 0 || len(f.waiting[c.User]) > 0 {
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

// notify wakes syncs, and queues a change for the listeners. O is what was observed
// until now.
func (f *Feed) notify(c Change, o observed) {
	f.wakeSyncs(c.User)
	if c.Version != o.version {
		o.rules = nil
	}
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

// makeRoom forgets users until there is room for another: the least recently used
// of some, which a map returns in random order.
func (f *Feed) makeRoom() {
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

// load is a load of a user's version that is under way.
type load struct {
	user   mxid.UserID
	before *observed // when it began
	watch  int
}

// begin is to be called before a sync loads a user's rules, and finish after it.
func (f *Feed) begin(user mxid.UserID) load {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.beginLoad(user)
}

func (f *Feed) beginLoad(user mxid.UserID) load {
	o, found := f.users[user]
	if !found {
		f.makeRoom()
		o = &observed{}
		f.users[user] = o
	}
	o.use(time.Now())
	return load{user, o, f.watch}
}

// finish observes the version that a load found, and reports whether it is news.
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
		f.notify(Change{User: l.user, Version: version}, next)
		return version != o.version && (o.version != 0 || o.state != failed)
	default:
		o.watch, o.doubted = max(o.watch, l.watch), false
	}
	return false
}

// fail is finish for a load that has failed. The user is checked after a while, until
// the store answers, and syncs are woken then.
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

// checkFailed has a user checked unless there was news in the meantime.
func (f *Feed) checkFailed(user mxid.UserID, since *observed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users[user] == since {
		f.toCheck[user] = struct{}{}
		signal(f.wake)
	}
}

// finishOvertaken is finish for a load during which another version was observed:
// nobody knows which of the two is newer.
func (f *Feed) finishOvertaken(l load, version int64, o observed) {
	switch {
	case version == o.version && !o.doubted:
		f.users[l.user].watch = max(o.watch, l.watch)
	case version != o.version && version != l.before.version:
		f.doubt(l.user, o)
	}
}

// nextChange returns a channel that is closed when the user is notified, unless ctx has
// ended by then.
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

func (f *Feed) wakeSyncs(user mxid.UserID) {
	for changed := range f.waiting[user] {
		close(changed)
	}
	delete(f.waiting, user)
}

// signal puts a value into a channel of size one, unless it is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
