package delivery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/retry"
)

// audience knows the compiled push rules of users, for deciding. What it remembers
// of a user is the rules of a version that the store had, and counts as long as
// a watch of the store lasts that began before they were read. Once they change,
// the watch says so within milliseconds; what it misses is found when all versions
// are compared with the store, once a minute. So no decision is made by rules
// that had been replaced for more than about 90 seconds, and none by rules that
// were replaced some milliseconds before where the watch works.
//
// It is safe for concurrent use.
type audience struct {
	rules    audienceRules
	sets     audienceSets
	compiled *match.Cache
	maxUsers int
	maxBytes int
	report   func(error)
	observer Observer
	recheck  time.Duration

	mu      sync.RWMutex
	known   map[mxid.UserID]known
	uses    map[*match.Rules]uses
	bytes   int
	watch   int                      // the number of the watch that lasts, 0 for none
	watches int                      // how many watches have begun
	loading map[mxid.UserID]*loading // whose rules are being read
}

// audienceRules is what an audience needs of [module.RuleStore].
type audienceRules interface {
	Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64]
	Watch(ctx context.Context, watching func(), changed func(module.Change)) error
}

// audienceSets is what it needs of [module.HostService].
type audienceSets interface {
	Rulesets(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pushrule.Ruleset]
}

// known is what is remembered of a user.
type known struct {
	rules   *match.Rules
	version int64 // of these rules, or one before it
}

// uses says how many users share a set of rules, and how much it takes.
type uses struct{ users, bytes int }

// loading is a read of a user's rules that is under way.
type loading struct {
	readers int
	changed bool // meanwhile
}

const (
	recheckEvery = time.Minute
	maxQuestions = 500 // users whose versions are asked for at a time
)

func newAudience(seams Seams, cfg Config) *audience {
	return &audience{
		rules: seams.Rules, sets: seams.Host, compiled: match.NewCache(cfg.MaxCachedRules),
		maxUsers: cfg.MaxCachedUsers, maxBytes: cfg.MaxCachedRules, report: seams.Report, observer: seams.Observer,
		recheck: recheckEvery, known: map[mxid.UserID]known{}, uses: map[*match.Rules]uses{}, loading: map[mxid.UserID]*loading{},
	}
}

// decide evaluates an event for members, with their rules where they have none.
func (a *audience) decide(ctx context.Context, e module.Event, members []match.Member) (module.Decisions, error) {
	event, err := match.ReadEvent(e.JSON)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidParam, "The event is not a JSON object.", err)
	}
	members = slices.Clone(members)
	if err := a.fill(ctx, members); err != nil {
		return nil, err
	}
	results, err := match.EvaluateAll(ctx, event, e.Room, members)
	if err != nil {
		return nil, module.Unavailable(err)
	}
	decisions := make(module.Decisions, len(members))
	for i, result := range results {
		decisions[i] = module.Decision{User: members[i].User, Result: result}
	}
	return decisions, nil
}

// fill gives rules to the members who have none.
func (a *audience) fill(ctx context.Context, members []match.Member) error {
	hits := a.fillKnown(members)
	var missing []int
	var users []mxid.UserID
	for i := range members {
		if members[i].Rules == nil {
			missing, users = append(missing, i), append(users, members[i].User)
		}
	}
	a.observer.Remembered(hits, len(missing))
	if len(missing) == 0 {
		return nil
	}
	loaded, err := a.load(ctx, users)
	for _, m := range missing {
		members[m].Rules = loaded[members[m].User]
	}
	return err
}

// fillStep is how many members are looked up while the lock is held.
const fillStep = 1024

// fillKnown gives rules to the members whose rules are known, and returns how many
// these are. For many members it uses all cores: a look-up in a large map waits for
// memory most of its time.
func (a *audience) fillKnown(members []match.Member) int {
	if len(members) <= fillStep {
		return a.fillSome(members)
	}
	var hits atomic.Int64
	var filling sync.WaitGroup
	for some := range slices.Chunk(members, fillStep) {
		filling.Go(func() { hits.Add(int64(a.fillSome(some))) })
	}
	filling.Wait()
	return int(hits.Load())
}

func (a *audience) fillSome(members []match.Member) (hits int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.watch == 0 {
		return 0
	}
	for i := range members {
		m := &members[i]
		if m.Rules != nil {
			continue
		}
		if k, found := a.known[m.User]; found {
			m.Rules = k.rules
			hits++
		}
	}
	return hits
}

// load reads and compiles the rules of users. The versions are read before the
// rules: if one is the store's still when it is compared later, the rules are,
// too. Those of a user whose stored rules cannot be read decide nothing.
func (a *audience) load(ctx context.Context, users []mxid.UserID) (map[mxid.UserID]*match.Rules, error) {
	watch := a.beginLoad(users)
	versions := a.rules.Versions(ctx, users)
	sets := a.sets.Rulesets(ctx, users)
	compiled := make(map[mxid.UserID]*match.Rules, len(users))
	var failed error
	for user, set := range sets {
		switch {
		case set.Err == nil:
			compiled[user] = a.compiled.Rules(user, set.Value)
		case fault.KindOf(set.Err) != fault.Database:
			failed = set.Err
		}
	}
	a.finishLoad(users, watch, versions, sets, compiled)
	return compiled, failed
}

// beginLoad notes which users' rules are being read, and in which watch.
func (a *audience) beginLoad(users []mxid.UserID) (watch int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, user := range users {
		l := a.loading[user]
		if l == nil {
			l = &loading{}
			a.loading[user] = l
		}
		l.readers++
	}
	return a.watch
}

// finishLoad remembers the rules that were read, unless they may have changed
// meanwhile.
func (a *audience) finishLoad(
	users []mxid.UserID, watch int, versions map[mxid.UserID]module.Result[int64],
	sets map[mxid.UserID]module.Result[pushrule.Ruleset], compiled map[mxid.UserID]*match.Rules,
) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, user := range users {
		l := a.loading[user]
		if l.readers--; l.readers == 0 {
			delete(a.loading, user)
		}
		version, found := versions[user]
		rules, set := compiled[user], sets[user].Value
		if !l.changed && watch != 0 && watch == a.watch && rules != nil && found && version.Err == nil {
			a.remember(user, known{rules, version.Value}, len(set.JSON()))
		}
	}
}

// remember keeps a user's rules, and forgets others where there are too many.
func (a *audience) remember(user mxid.UserID, k known, bytes int) {
	a.forget(user)
	for other := range a.known {
		if len(a.known) < a.maxUsers && a.bytes+bytes <= a.maxBytes {
			break
		}
		a.forget(other)
	}
	a.known[user] = k
	u := a.uses[k.rules]
	if u.users == 0 {
		u.bytes = bytes
		a.bytes += bytes
	}
	u.users++
	a.uses[k.rules] = u
}

func (a *audience) forget(user mxid.UserID) {
	k, found := a.known[user]
	if !found {
		return
	}
	delete(a.known, user)
	u := a.uses[k.rules]
	if u.users--; u.users > 0 {
		a.uses[k.rules] = u
		return
	}
	a.bytes -= u.bytes
	delete(a.uses, k.rules)
}

// run watches the store until ctx ends.
func (a *audience) run(ctx context.Context) {
	var rechecking sync.WaitGroup
	rechecking.Go(func() { a.recheckRepeatedly(ctx) })
	defer rechecking.Wait()
	retry.Repeat(ctx, shortestRetry, longestRetry, func() (watched bool) {
		err := a.rules.Watch(ctx, a.beginWatch, a.changed)
		watched = a.endWatch()
		if watched && ctx.Err() == nil {
			a.report(fmt.Errorf("delivery: watch push rules: %w", orUnknown(err)))
		}
		return watched
	})
}

// beginWatch forgets what changed before, perhaps: all.
func (a *audience) beginWatch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches++
	a.watch = a.watches
	clear(a.known)
	clear(a.uses)
	a.bytes = 0
}

// endWatch reports whether there was a watch.
func (a *audience) endWatch() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	watched := a.watch != 0
	a.watch = 0
	return watched
}

// changed forgets the rules of a user that have changed.
func (a *audience) changed(c module.Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l := a.loading[c.User]; l != nil {
		l.changed = true
	}
	if k, found := a.known[c.User]; found && k.version != c.Version {
		a.forget(c.User)
	}
}

// recheckRepeatedly finds changes that the watch has missed.
func (a *audience) recheckRepeatedly(ctx context.Context) {
	for retry.Sleep(ctx, retry.Jitter(a.recheck)) == nil {
		a.mu.Lock()
		users := slices.Collect(maps.Keys(a.known))
		a.mu.Unlock()
		for some := range slices.Chunk(users, maxQuestions) {
			if !a.check(ctx, some) {
				break
			}
		}
	}
}

// check forgets the users whose versions are others, or are not known. It reports
// whether the store has answered.
func (a *audience) check(ctx context.Context, users []mxid.UserID) bool {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	before := make(map[mxid.UserID]known, len(users))
	a.mu.Lock()
	for _, user := range users {
		before[user] = a.known[user]
	}
	a.mu.Unlock()
	versions := a.rules.Versions(ctx, users)
	a.mu.Lock()
	defer a.mu.Unlock()
	answered := false
	for user, k := range before {
		version, found := versions[user]
		answered = answered || found && version.Err == nil
		if now := a.known[user]; now == k && (!found || version.Err != nil || version.Value != k.version) {
			a.forget(user)
		}
	}
	return answered || len(users) == 0
}
