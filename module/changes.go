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

// Changes knows the versions of users' push rules and tells [ChangeListener]s
// of changes: of those made here at once, of those made by other hosts when the
// store tells. What the store tells is a hint: which version there is, only the
// store says. It is safe for concurrent use, and works while [Changes.Run]
// runs; before and after that, changes wait to be told.
type Changes struct {
	store     RuleStore
	cfg       ChangesConfig
	listeners []*listenerQueue
	counters  changeCounters

	mu     sync.Mutex
	known  map[mxid.UserID]*knowledge
	hinted map[mxid.UserID]struct{} // whose rules are to be loaded
	watch  int                      // counts the times that the store was watched; 0 while it is not
	epoch  int                      // the last value of watch

	hints chan struct{} // says that hinted is not empty
	audit chan struct{} // says that all that is known is to be looked at again
}

// knowledge is what is known of a user's rules.
type knowledge struct {
	latest int64     // the version they have, as far as heard; 0 is unknown
	told   int64     // the version the listeners know, or need not hear of
	found  bool      // whether told is no more than what a load found first
	owed   bool      // whether the listeners are to hear of the version that is stored
	epoch  int       // the watch during which it was loaded
	news   int       // counts what was heard of the user
	wanted time.Time // when somebody last asked, or changed something
}

// ChangesConfig configures [Changes].
type ChangesConfig struct {
	// Recheck is how often the versions of the users who sync here are compared
	// with the store, for news that got lost. Default 1 minute.
	Recheck time.Duration

	// MaxUsers is how many users' versions are remembered, about 200 bytes
	// each. Default 100,000.
	MaxUsers int

	// MaxQueued is how many users' changes may wait for a slow listener, one
	// for each user. Default 10,000.
	MaxQueued int

	// Report gets what goes wrong beside any request: a listener's panic, a
	// store that cannot be watched (once for each outage). Nil ignores it.
	Report func(error)

	// Observer is told how late listeners hear of changes. Nil is none.
	Observer observe.Observer
}

// DefaultChangesConfig returns the defaults.
func DefaultChangesConfig() ChangesConfig {
	return ChangesConfig{Recheck: time.Minute, MaxUsers: 100_000, MaxQueued: 10_000}
}

// Validate joins an error for each field that is not as its comment says.
func (c ChangesConfig) Validate() error {
	var faults []error
	if c.Recheck <= 0 {
		faults = append(faults, fmt.Errorf("ChangesConfig.Recheck is %v, want above 0", c.Recheck))
	}
	if c.MaxUsers < 1 {
		faults = append(faults, fmt.Errorf("ChangesConfig.MaxUsers is %d, want at least 1", c.MaxUsers))
	}
	if c.MaxQueued < 1 {
		faults = append(faults, fmt.Errorf("ChangesConfig.MaxQueued is %d, want at least 1", c.MaxQueued))
	}
	return errors.Join(faults...)
}

// interest is for how long a user is looked after whom nobody asks for.
const interest = 10 * time.Minute

// NewChanges returns what tells listeners of changes in store. It fails when
// cfg is not valid.
func NewChanges(store RuleStore, cfg ChangesConfig, listeners ...ChangeListener) (*Changes, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	if cfg.Report == nil {
		cfg.Report = func(error) {}
	}
	cfg.Observer = observe.Or(cfg.Observer)
	c := &Changes{
		store: store, cfg: cfg,
		known: map[mxid.UserID]*knowledge{}, hinted: map[mxid.UserID]struct{}{},
		hints: make(chan struct{}, 1), audit: make(chan struct{}, 1),
	}
	for _, listener := range listeners {
		c.listen(listener)
	}
	return c, nil
}

// listen adds a listener; it must not be called once [Changes.Run] runs.
func (c *Changes) listen(listener ChangeListener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, newListenerQueue(listener, c))
}

// Run watches the store and calls the listeners until ctx ends, and returns
// when all that it started has ended, the listeners' calls included.
func (c *Changes) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.watchStore(ctx) })
	running.Go(func() { c.loadHinted(ctx) })
	running.Go(func() { c.recheck(ctx) })
	for _, queue := range c.listeners {
		running.Go(func() { queue.run(ctx) })
	}
	running.Wait()
}

// announce tells of a change that was made here.
func (c *Changes) announce(user mxid.UserID, content Content) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.want(user)
	k.news++
	k.latest = max(k.latest, content.Version)
	if content.Version > k.told {
		c.tell(user, k, content)
	}
}

// tell has the listeners hear of a content.
func (c *Changes) tell(user mxid.UserID, k *knowledge, content Content) {
	k.told, k.found, k.owed = content.Version, false, false
	for _, queue := range c.listeners {
		if !queue.put(user, content) {
			k.owed = true // the next look at the store makes up for it
		}
	}
}

// forget is announce for a user whose rules are gone.
func (c *Changes) forget(user mxid.UserID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, user)
}

// know returns what is known of a user, which may be nothing yet. It makes room
// for it by forgetting another.
func (c *Changes) know(user mxid.UserID) *knowledge {
	k, found := c.known[user]
	if !found {
		for other := range c.known {
			if len(c.known) < c.cfg.MaxUsers {
				break
			}
			delete(c.known, other)
		}
		k = &knowledge{}
		c.known[user] = k
	}
	return k
}

// want is know for a user who is to be looked after from now on.
func (c *Changes) want(user mxid.UserID) *knowledge {
	k := c.know(user)
	k.wanted = time.Now()
	return k
}

// version returns the version that is known to be stored, 0 where none is.
func (c *Changes) version(user mxid.UserID) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.want(user)
	if c.watch == 0 || k.epoch != c.watch {
		return 0
	}
	return k.latest
}

// moment is what was known when a load began.
type moment struct {
	user  mxid.UserID
	known *knowledge
	news  int
	watch int
}

// begin is to be called before a user's rules are loaded, and learn after it.
func (c *Changes) begin(user mxid.UserID) moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.know(user)
	return moment{user, k, k.news, c.watch}
}

// learn takes in what a load found, and reports whether it could: not where the
// user was forgotten meanwhile. Where something was heard of the user, an older
// version is just late; otherwise the store has gone back.
func (c *Changes) learn(m moment, content Content) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := m.known
	if c.known[m.user] != k {
		return false
	}
	if content.Version != k.latest {
		if content.Version < k.latest && k.news != m.news {
			return true
		}
		k.news++
	}
	k.latest, k.epoch = content.Version, m.watch
	switch {
	case !content.Found():
		k.told, k.owed = 0, false
	case k.owed, k.told != 0 && k.told != content.Version:
		c.tell(m.user, k, content)
	case k.told == 0:
		k.told, k.found = content.Version, true
	}
	return true
}

// disown is learn for rules that cannot be read: there is nothing to tell.
func (c *Changes) disown(m moment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.known.owed = false
}

// watchStore keeps watching the store.
func (c *Changes) watchStore(ctx context.Context) {
	const shortest, longest = 100 * time.Millisecond, time.Second
	wait := shortest
	for first := true; ; first = false {
		err := c.store.Watch(ctx, c.watching, c.hint)
		watched := c.unwatch()
		if ctx.Err() != nil {
			return
		}
		if watched {
			wait = shortest
		}
		if watched || first {
			c.cfg.Report(fmt.Errorf("module: changes made by other hosts are not heard for a while: %w", err))
		}
		if !pause(ctx, wait/2+rand.N(wait)) {
			return
		}
		wait = min(2*wait, longest)
	}
}

// isWatching reports whether the store is watched.
func (c *Changes) isWatching() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watch != 0
}

// unwatch ends a watch, and reports whether there was one.
func (c *Changes) unwatch() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	watched := c.watch != 0
	c.watch = 0
	return watched
}

// watching begins a watch. What was known before may have changed unheard.
func (c *Changes) watching() {
	c.mu.Lock()
	c.epoch++
	c.watch = c.epoch
	c.mu.Unlock()
	notify(c.audit)
}

// hint takes in that a user's rules have a version. It is that of this host's
// own changes, too, which were told already, unless their request went away.
func (c *Changes) hint(user mxid.UserID, version int64) {
	c.counters.hints.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isNews(user, version) {
		return
	}
	k := c.know(user)
	k.news++
	k.latest, k.owed = version, true
	if len(c.hinted) >= c.cfg.MaxQueued {
		c.counters.dropped.Add(1) // the next recheck makes up for it
		return
	}
	c.hinted[user] = struct{}{}
	notify(c.hints)
}

// isNews reports whether a version is to be told, as far as is known. What a
// load found before its hint came is.
func (c *Changes) isNews(user mxid.UserID, version int64) bool {
	k, known := c.known[user]
	if !known {
		return len(c.listeners) > 0
	}
	return version > k.latest || version == k.latest && k.found && len(c.listeners) > 0
}

// maxLoad is how many users' rules are loaded at a time.
const maxLoad = 500

// loadHinted loads what was hinted at, to tell of it.
func (c *Changes) loadHinted(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.hints:
		}
		for users := c.takeHinted(); len(users) > 0; users = c.takeHinted() {
			failed := c.load(ctx, users)
			c.hintAgain(failed)
			if len(failed) > 0 && !pause(ctx, time.Second) {
				return
			}
		}
	}
}

// takeHinted returns users to be loaded, to tell of them though they may have
// been forgotten since.
func (c *Changes) takeHinted() []mxid.UserID {
	c.mu.Lock()
	defer c.mu.Unlock()
	users := make([]mxid.UserID, 0, min(len(c.hinted), maxLoad, c.cfg.MaxUsers))
	for user := range c.hinted {
		if len(users) == cap(users) {
			break
		}
		users = append(users, user)
		delete(c.hinted, user)
		if k := c.know(user); k.told == 0 || k.found {
			k.owed = true
		}
	}
	return users
}

func (c *Changes) hintAgain(users []mxid.UserID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, user := range users {
		c.hinted[user] = struct{}{}
	}
}

// load learns what is stored for users, and returns those of whom it could not.
func (c *Changes) load(ctx context.Context, users []mxid.UserID) (failed []mxid.UserID) {
	moments := make([]moment, len(users))
	for i, user := range users {
		moments[i] = c.begin(user)
	}
	loaded := c.store.LoadMany(ctx, users)
	for _, m := range moments {
		result := loaded[m.user]
		switch {
		case fault.KindOf(result.Err) == fault.Unavailable:
			failed = append(failed, m.user)
		case result.Err != nil:
			c.disown(m)
		case !c.learn(m, result.Value):
			failed = append(failed, m.user)
		}
	}
	return failed
}

// recheck compares what is known with the store, from time to time and when a
// watch begins.
func (c *Changes) recheck(ctx context.Context) {
	wait := c.cfg.Recheck
	for {
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-c.audit:
			timer.Stop()
		}
		wait = c.cfg.Recheck
		if !c.lookAgain(ctx) {
			wait = min(wait, impatience)
		}
	}
}

// impatience is when what could not be looked at is tried again.
const impatience = 5 * time.Second

// lookAgain compares what is known with the store, and reports whether it could.
func (c *Changes) lookAgain(ctx context.Context) bool {
	could := true
	for users := range slices.Chunk(c.wanted(), maxLoad) {
		c.counters.rechecked.Add(int64(len(users)))
		failed := c.load(ctx, users)
		could = could && len(failed) == 0
		if len(failed) == len(users) {
			break // the store is gone, and with it the watch
		}
	}
	return could
}

// wanted returns the users who are still looked after, or of whom something is
// still to be told, and forgets the others.
func (c *Changes) wanted() []mxid.UserID {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.known, func(_ mxid.UserID, k *knowledge) bool {
		return !k.owed && time.Since(k.wanted) > interest
	})
	return slices.Collect(maps.Keys(c.known))
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

// notify fills a channel that holds one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
