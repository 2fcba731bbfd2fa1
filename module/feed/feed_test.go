package feed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/storetest"
)

const (
	alice mxid.UserID = "@alice:example.org"
	bob   mxid.UserID = "@bob:example.org"
	carol mxid.UserID = "@carol:example.org"
	dave  mxid.UserID = "@dave:example.org"
)

// shared is an in-memory rule store of several hosts. Versions are 1, 2, 3 and so on over
// all users. The watch receives only the changes that a test publishes.
type shared struct {
	*storetest.Memory
	failing  error         // the error of every load
	away     mxid.UserID   // whose master is lost
	gone     error         // the error of an update that took effect
	refusing error         // the error of every watch
	silent   bool          // watches do not begin
	slow     time.Duration // how long a load takes
	loaded   int           // loaded users
	single   int           // users loaded by Load
	asked    int           // calls of LoadMany and Versions
	loading  int           // loads that have not ended
	watched  int           // calls of Watch
	watch    *sharedWatch  // the present watch
	meeting  *gate         // holds loads outside requests
}

type sharedWatch struct {
	changed func(module.Change)
	end     chan error
}

func newShared() *shared {
	return &shared{Memory: storetest.NewMemory()}
}

// gate admits its waiters one at a time until it is open.
type gate struct{ step chan struct{} }

func newGate() *gate { return &gate{make(chan struct{})} }

func (g *gate) next() {
	select {
	case g.step <- struct{}{}:
	default:
	}
}

func (g *gate) open() { close(g.step) }

type gateKey struct{}

func (s *shared) pass(ctx context.Context) {
	if g, held := ctx.Value(gateKey{}).(*gate); held {
		<-g.step
	} else if s.meeting != nil {
		<-s.meeting.step
	}
}

// load waits before and after it reads.
func (s *shared) load(ctx context.Context, users []mxid.UserID) (map[mxid.UserID]module.Content, error) {
	s.pass(ctx)
	var half time.Duration
	s.set(func(s *shared) { half, s.loading = s.slow/2, s.loading+1 })
	defer s.set(func(s *shared) { s.loading-- })
	time.Sleep(half)
	s.Lock()
	s.loaded += len(users)
	all, err := map[mxid.UserID]module.Content{}, s.failing
	for _, user := range users {
		all[user] = s.Contents[user]
	}
	s.Unlock()
	time.Sleep(half)
	s.pass(ctx)
	return all, err
}

func (s *shared) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	s.set(func(s *shared) { s.single++ })
	all, err := s.load(ctx, []mxid.UserID{user})
	if err != nil {
		return module.Content{}, err
	}
	return all[user], nil
}

func (s *shared) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	s.Lock()
	s.asked++
	away := s.away
	s.Unlock()
	contents, err := s.load(ctx, users)
	all := map[mxid.UserID]module.Result[module.Content]{}
	for user, content := range contents {
		all[user] = module.Result[module.Content]{Value: content, Err: err}
		if user == away {
			all[user] = module.Result[module.Content]{Err: errDown}
		}
	}
	return all
}

func (s *shared) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	all := map[mxid.UserID]module.Result[int64]{}
	for user, loaded := range s.LoadMany(ctx, users) {
		all[user] = module.Result[int64]{Value: loaded.Value.Version, Err: loaded.Err}
	}
	return all
}

func (s *shared) Update(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (module.Content, error) {
	s.pass(ctx)
	content, err := s.update(user, edit)
	if err != nil {
		return module.Content{}, err
	}
	s.pass(ctx)
	return content, s.gone
}

func (s *shared) update(user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (module.Content, error) {
	return s.Rules().Update(context.Background(), user, edit)
}

func (s *shared) Delete(ctx context.Context, user mxid.UserID) error {
	return s.Rules().Delete(ctx, user)
}

func (s *shared) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	s.Lock()
	s.watched++
	refusing, silent, w := s.refusing, s.silent, &sharedWatch{changed, make(chan error)}
	if refusing == nil && !silent {
		s.watch = w
	}
	s.Unlock()
	if refusing != nil {
		return refusing
	}
	if !silent {
		watching()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-w.end:
		return err
	}
}

// change makes a change by another host.
func (s *shared) change(user mxid.UserID) int64 {
	content, err := s.update(user, func(rules *pushrule.Ruleset, _ bool) error {
		return rules.Put(pushrule.Room, fmt.Sprint("by another ", s.Changes), pushrule.Draft{}, pushrule.Position{})
	})
	if err != nil {
		panic(err)
	}
	return content.Version
}

// hint publishes a change to the watch, if there is one.
func (s *shared) hint(user mxid.UserID, version int64) {
	s.Lock()
	w := s.watch
	s.Unlock()
	if w != nil {
		w.changed(module.Change{User: user, Version: version, Made: time.Now()})
	}
}

// cut ends the watch; refusing is the error of later ones.
func (s *shared) cut(refusing error) {
	s.Lock()
	w := s.watch
	s.watch, s.refusing = nil, refusing
	s.Unlock()
	if w != nil {
		w.end <- errCut
	}
}

func (s *shared) set(change func(*shared)) {
	s.Lock()
	defer s.Unlock()
	change(s)
}

// foreign is a version that the store assigns to another program's change.
const foreign = 1 << 62

func (s *shared) edit(user mxid.UserID, version int64) {
	s.set(func(s *shared) { s.Contents[user] = module.Content{Rules: s.Contents[user].Rules, Version: version} })
}

func (s *shared) goBack(user mxid.UserID, to module.Content) {
	s.set(func(s *shared) { s.Contents[user] = to })
}

func (s *shared) content(user mxid.UserID) module.Content {
	s.Lock()
	defer s.Unlock()
	return s.Contents[user]
}

var (
	errCut  = errors.New("the watch was cut")
	errDown = module.Unavailable(errors.New("the store is down"))
)

// recorder is a listener. At each call it looks at the versions that are stored.
type recorder struct {
	store *shared
	do    func(ctx context.Context) // called before recording

	mu     sync.Mutex
	calls  map[mxid.UserID]int
	missed int
	seen   map[mxid.UserID]int64 // the version at the last call that was about the user
}

func newRecorder(store *shared) *recorder {
	return &recorder{store: store, calls: map[mxid.UserID]int{}, seen: map[mxid.UserID]int64{}}
}

func (r *recorder) PushRulesChanged(ctx context.Context, user mxid.UserID) {
	if r.do != nil {
		r.do(ctx)
	}
	version := r.store.content(user).Version
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[user]++
	r.seen[user] = version
}

func (r *recorder) PushRulesMissed(context.Context) {
	r.store.Lock()
	defer r.store.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missed++
	for user, content := range r.store.Contents {
		r.seen[user] = content.Version
	}
}

func (r *recorder) of(user mxid.UserID) (calls, missed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[user], r.missed
}

func (r *recorder) lastSeen(user mxid.UserID) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[user]
}

func (r *recorder) users() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

type instance struct {
	*feed.Feed
	t     *testing.T
	store *shared
	rules module.RuleService
	sync  module.SyncService
	end   func() // ends the host and waits

	mu      sync.Mutex
	reports []string
	lags    []time.Duration
}

type feedReports struct {
	observe.Observer
	i *instance
}

func (r feedReports) Report(_ observe.Problem, err error) {
	r.i.mu.Lock()
	defer r.i.mu.Unlock()
	r.i.reports = append(r.i.reports, fault.Details(err))
}

func (r feedReports) Took(_ observe.Span, _ string, took time.Duration, _ bool) {
	r.i.mu.Lock()
	defer r.i.mu.Unlock()
	r.i.lags = append(r.i.lags, took)
}

func asDefault(*feed.Config) {}

func newInstance(
	t *testing.T, store *shared, change func(*feed.Config), listeners ...module.ChangeListener,
) *instance {
	t.Helper()
	i := &instance{t: t, store: store}
	cfg := feed.DefaultConfig()
	change(&cfg)
	var err error
	if i.Feed, err = feed.New(module.Stores{Rules: store}, cfg, feedReports{observe.None, i}, feed.Listeners{Rules: listeners}); err != nil {
		t.Fatal(err)
	}
	services := service.New(module.Stores{Rules: store}, i.Feed, service.Options{Limits: pushrule.DefaultLimits()})
	i.rules = services.Rules()
	i.sync = i.Feed.Sync(i.rules)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.Run(ctx)
	}()
	i.end = func() {
		cancel()
		<-ended
	}
	t.Cleanup(i.end)
	synctest.Wait()
	return i
}

// keepRules reads the user's rules for a decision, unless they are kept. Then is called after
// the rules are read.
func (i *instance) keepRules(ctx context.Context, user mxid.UserID, then func()) {
	i.rulesOf(ctx, user, then)
}

// rulesOf returns the user's rules for a decision, nil if they cannot be read.
func (i *instance) rulesOf(ctx context.Context, user mxid.UserID, then func()) *match.Rules {
	rules := i.Feed.Rules([]match.Member{{User: user}})
	if missing, _ := rules.Missing(0); len(missing) == 0 {
		return rules.Entries[0].Rules()
	}
	loaded := i.store.LoadMany(ctx, []mxid.UserID{user})[user]
	then()
	if loaded.Err != nil {
		return nil
	}
	return rules.Keep(user, loaded.Value)
}

func (i *instance) reported() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.reports)
}

func (i *instance) put(user mxid.UserID, id string) error {
	return i.rules.Put(i.t.Context(), user, pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
}

func (i *instance) mustPut(user mxid.UserID, id string) {
	i.t.Helper()
	if err := i.put(user, id); err != nil {
		i.t.Error(err)
	}
}

func (i *instance) syncs(user mxid.UserID, since int64) int64 {
	i.t.Helper()
	ctx, cancel := context.WithCancel(i.t.Context()) // the sync does not wait
	defer cancel()
	update, err := i.sync.Since(ctx, user, since)
	if err != nil || update.New != (update.Token != since) || update.Content.Version != 0 != update.New {
		i.t.Errorf("after %d: got %d, new %t, of version %d, error %v", since, update.Token, update.New, update.Content.Version, err)
	}
	return update.Token
}

// loads returns the number of loaded users since the last call.
func (s *shared) loads() (users int) {
	s.set(func(s *shared) { users, s.loaded = s.loaded, 0 })
	return users
}

const pastRecheck = 2 * time.Minute

func TestListenersAreNotifiedOfChanges(t *testing.T) {
	type steps = []step
	for _, test := range []struct {
		name          string
		steps         steps // after a sync of version 1
		calls, missed int
	}{
		{"made here", steps{putsRule("a"), publishesAgain}, 1, 0},
		{"made here, not those that change nothing", steps{putsRule("a"), publishesAgain, rests, putsRule("a")}, 1, 0},
		{"made here, for a request that went away", steps{hangsUp, publishesAgain}, 1, 0},
		{"made elsewhere", steps{elsewherePublished}, 1, 0},
		{"made elsewhere, received twice at once", steps{elsewherePublished, publishesAgain}, 1, 0},
		{"made elsewhere, received of in another order", steps{elsewhere, elsewhere, publishes(3), rests, publishes(2)}, 2, 0},
		{"found by a sync first", steps{elsewhere, asks(1), publishesAgain}, 1, 0},
		{"that nobody published", steps{elsewhere, isRechecked}, 1, 0},
		{"that nobody published, and a sync found", steps{elsewhere, asks(0)}, 1, 0},
		{"while nothing was watched", steps{cutOff, elsewhere, passes(time.Second)}, 1, 1},
		{"while nothing was watched for long", steps{cutOffForLong, passes(5 * time.Second), elsewhere, mayWatch, passes(8 * time.Second)}, 1, 1},
		{"that could not be checked when the watch began", steps{
			cutOff, elsewhere, loadsFail, passes(time.Second), loadsWork, passes(10 * time.Second),
		}, 1, 1},
		{"that the store has lost", steps{losesChangesSince(elsewherePublished, asks(1), rests), isRechecked}, 2, 0},
		{"while the user's rules cannot be read", steps{isUnreadable, elsewherePublished, isRechecked, loadsWork, elsewherePublished}, 2, 0},
		{"that the user is gone", steps{isDeleted, isRechecked}, 1, 0},
		{"not those of somebody else", steps{bobElsewherePublished}, 0, 0},
		{"not that nothing changes", steps{isRechecked, asks(1), isRechecked}, 0, 0},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			store := newShared()
			listener := newRecorder(store)
			i := newInstance(t, store, asDefault, listener)
			i.take(elsewhere, asks(0))
			i.take(test.steps...)
			calls, missed := listener.of(alice)
			if missed--; missed != test.missed || calls != test.calls && missed == 0 { // one is at the start
				t.Errorf("%d calls, and %d of missed changes, want %d and %d", calls, missed, test.calls, test.missed)
			}
			if got, stored := listener.lastSeen(alice), store.content(alice).Version; calls+missed > 0 && got != stored {
				t.Errorf("the last call was at version %d, stored is %d", got, stored)
			}
		})
	}
}

func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

func someUsers(n int) []mxid.UserID {
	users := make([]mxid.UserID, n)
	for i := range users {
		users[i] = mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
	}
	return users
}

func TestMessagesDoNotReadTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault, newRecorder(store))
		i.syncs(alice, 0)
		store.loads()
		i.take(aThousandTimes(elsewherePublished, publishes(1), bobElsewherePublished), passes(10*time.Second))
		if got := store.loads(); got > 0 {
			t.Errorf("%d users were loaded", got)
		}
	})
}

func TestManyUsersAreRecheckedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		listener := newRecorder(store)
		i := newInstance(t, store, asDefault, listener)
		users := someUsers(1001)
		for _, user := range users {
			store.change(user)
			i.syncs(user, 0)
			store.change(user)
		}
		store.asked, store.slow = 0, time.Second
		store.cut(nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if listener.users() != len(users) || store.asked != 3 {
			t.Errorf("received %d users after %d checks, want %d after 3", listener.users(), store.asked, len(users))
		}
	})
}

// A master is lost: its users are compared again each second, and the others are not.
func TestOnlyUsersWithoutAnAnswerAreComparedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault)
		i.take(elsewhere, asks(0), bobElsewhere, bobAsks)
		store.set(func(s *shared) { s.away, s.loaded = bob, 0 })
		store.cut(nil)
		time.Sleep(20 * time.Second)
		asked := 0
		store.set(func(s *shared) { asked, s.loaded, s.away = s.loaded, 0, "" })
		if asked < 15 || asked > 25 {
			t.Errorf("asked for %d users in 20 s, want bob each second", asked)
		}
		time.Sleep(5 * time.Second)
		if got := store.loads(); got != 1 {
			t.Errorf("asked for %d users after the master was back, want bob once", got)
		}
		i.wantSync(alice, 1, 1, 0)
		i.wantSync(bob, 2, 2, 0)
	})
}

func TestASlowListenerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		goOn := make(chan struct{})
		slow, quick := newRecorder(store), newRecorder(store)
		slow.do = func(context.Context) { <-goOn }
		i := newInstance(t, store, asDefault, slow, quick)
		i.syncs(alice, 0) // creates the rules
		began := time.Now()
		for n := range 10 {
			i.mustPut(alice, fmt.Sprint(n))
			i.take(publishesAgain)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the requests took %v", took)
		}
		if got, _ := quick.of(alice); got != 10 {
			t.Errorf("another listener received %d changes, want 10", got)
		}
		if got := i.Stats().Waiting; got != 1 {
			t.Errorf("the changes of %d users wait, want 1", got)
		}
		close(goOn)
		synctest.Wait()
		if got, _ := slow.of(alice); got != 2 {
			t.Errorf("it received %d changes, want the first and the last", got)
		}
	})
}

func TestAListenerHearsOfDroppedChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		goOn := make(chan struct{})
		slow := newRecorder(store)
		slow.do = func(context.Context) { <-goOn }
		i := newInstance(t, store, func(c *feed.Config) { c.MaxQueued = 10 }, slow)
		users := someUsers(1 + 10 + 3)
		for _, user := range users {
			store.hint(user, store.change(user))
			synctest.Wait()
		}
		if s := i.Stats(); s.Waiting != 10 || s.Dropped != 3 {
			t.Errorf("%d wait and %d were dropped, want 10 and 3", s.Waiting, s.Dropped)
		}
		close(goOn)
		synctest.Wait()
		for _, user := range users {
			if got, stored := slow.lastSeen(user), store.content(user).Version; got != stored {
				t.Errorf("the last call about %s was at version %d, stored is %d", user, got, stored)
			}
		}
		if _, missed := slow.of(alice); missed != 2 {
			t.Errorf("%d calls of missed changes, want one at the start, and one", missed)
		}
	})
}

func TestAPanickingListenerAffectsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		panics := true
		nervous, calm := newRecorder(store), newRecorder(store)
		nervous.do = func(context.Context) {
			if panics {
				panic("at the disco")
			}
		}
		i := newInstance(t, store, asDefault, nervous, calm)
		i.take(elsewherePublished, rests, elsewherePublished)
		panics = false
		i.take(elsewherePublished)
		if got, _ := nervous.of(alice); got != 1 {
			t.Errorf("after its panics it received %d changes, want 1", got)
		}
		if got, _ := calm.of(alice); got != 3 {
			t.Errorf("the other received %d changes, want 3", got)
		}
		if s := i.Stats(); s.Panics != 2 || s.Notified != 6 {
			t.Errorf("got %+v, want 2 panics in 6 calls", s)
		}
		reports := i.reported()
		if len(reports) != 2 || !strings.Contains(reports[0], "at the disco") || !strings.Contains(reports[0], "*feed_test.recorder") {
			t.Errorf("got reports %q", reports)
		}
	})
}

func TestAnOutageIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		store.refusing = errDown
		i := newInstance(t, store, asDefault)
		mark := func(n int, last string) {
			t.Helper()
			reports := i.reported()
			if len(reports) != n || !strings.Contains(reports[n-1], last) {
				t.Errorf("got reports %q, want %d with %q last", reports, n, last)
			}
		}
		time.Sleep(time.Minute)
		mark(1, "down")
		store.set(func(s *shared) {
			if s.refusing = nil; s.watched > 120 {
				t.Errorf("there were %d attempts in a minute", s.watched)
			}
		})
		time.Sleep(time.Minute)
		mark(1, "down")
		store.cut(errDown)
		time.Sleep(time.Minute)
		mark(2, "cut")
		store.set(func(s *shared) { s.refusing = nil })
		time.Sleep(time.Minute)
		store.cut(nil)
		time.Sleep(time.Minute)
		mark(3, "cut")
		i.end()
		mark(3, "cut")
	})
}

func TestNothingOutlivesTheRun(t *testing.T) {
	for name, steps := range map[string][]step{
		"in quiet":                 nil,
		"while a listener is busy": {elsewherePublished, bobElsewherePublished},
		"while the store fails":    {asks(0), loadsFail, cutOff, elsewherePublished},
		"while rechecking":         {asks(0), loadsTake(10 * time.Second), cutOff, passes(time.Second)},
		"while nothing is watched": {cutOffForLong},
		"while a watch begins":     {watchesHang, cutOff, passes(time.Second)},
	} {
		inBubble(t, name, func(t *testing.T) {
			store := newShared()
			calls := 0
			busy := newRecorder(store)
			busy.do = func(ctx context.Context) {
				calls++
				<-ctx.Done()
			}
			i := newInstance(t, store, asDefault, busy)
			i.take(steps...)
			began, slow := time.Now(), store.slow
			i.end()
			if took := time.Since(began); took > slow {
				t.Errorf("it ended after %v", took)
			}
			if store.loading != 0 {
				t.Error("a load goes on")
			}
			if calls > 1 {
				t.Errorf("the listener was called %d times, want no call after the end", calls)
			}
			store.set(func(s *shared) { s.failing = nil })
			i.syncs(alice, 0)
		})
	}
}

func TestFeedConfigErrorsNameTheField(t *testing.T) {
	t.Parallel()
	_, err := feed.New(module.Stores{Rules: newShared()}, feed.Config{MaxBytes: -1, MaxCachedRules: -1}, nil, feed.Listeners{})
	for _, field := range []string{"Recheck", "MaxBytes", "MaxCachedRules", "MaxQueued"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}

// course runs the steps of several parties in one order.
type course struct {
	*instance
	listener *recorder
	parties  [][]func()
	gates    []*gate
	working  sync.WaitGroup
}

// goes starts a request that waits at a gate, and returns the function that admits it.
func (c *course) goes(do func(ctx context.Context)) (begin, next func()) {
	g := newGate()
	c.gates = append(c.gates, g)
	begin = func() {
		c.working.Go(func() { do(context.WithValue(context.Background(), gateKey{}, g)) })
	}
	return begin, g.next
}

func another(c *course) []func() {
	var version int64
	return []func(){
		func() { version = c.store.change(alice) },
		func() { c.store.hint(alice, version) },
	}
}

func own(c *course) []func() {
	begin, next := c.goes(func(ctx context.Context) {
		if err := c.rules.Put(ctx, alice, pushrule.Room, "own", pushrule.Draft{}, pushrule.Position{}); err != nil {
			c.t.Error(err)
		}
	})
	var version int64
	return []func(){
		func() {
			begin()
			synctest.Wait()
			next()
			synctest.Wait()
			version = c.store.content(alice).Version
		},
		next,
		func() { c.store.hint(alice, version) },
	}
}

func reader(c *course) []func() {
	begin, next := c.goes(func(ctx context.Context) {
		if _, err := c.sync.Since(ctx, alice, 0); err != nil {
			c.t.Error(err)
		}
	})
	return []func(){begin, next, next}
}

func decider(c *course) []func() {
	var g *gate
	begin, next := c.goes(func(ctx context.Context) {
		c.keepRules(ctx, alice, func() { <-g.step })
	})
	g = c.gates[len(c.gates)-1]
	return []func(){begin, next, next, next}
}

// late is a message that arrives after later ones, unless it comes first.
func late(c *course) []func() {
	return []func(){func() { c.store.hint(alice, 1) }}
}

// recheck compares versions at its own pace.
func recheck(c *course) []func() {
	c.store.set(func(s *shared) { s.meeting = newGate() })
	c.gates = append(c.gates, c.store.meeting)
	return []func(){func() { c.store.cut(nil); time.Sleep(time.Second) }, c.store.meeting.next, c.store.meeting.next}
}

func lostWatch(c *course) []func() {
	return []func(){
		func() { c.store.cut(nil) },
		func() { time.Sleep(time.Second) },
	}
}

// No order needs a recheck.
func TestEveryOrderOfEventsEndsWithTheNewestVersion(t *testing.T) {
	for name, parties := range map[string][]func(*course) []func(){
		"a change elsewhere and two syncs":         {another, reader, reader},
		"two changes elsewhere and a sync":         {another, another, reader},
		"a change here, one elsewhere, and a sync": {own, another, reader},
		"a change here and two syncs":              {own, reader, reader},
		"a slow recheck, a change and a sync":      {another, recheck, reader},
		"a slow recheck between two changes":       {another, recheck, another},
		"a slow recheck and a change here":         {recheck, own},
		"a late message, a change and a sync":      {late, another, reader},
		"a watch that is lost, a change, a sync":   {lostWatch, another, reader},
		"a watch that is lost and a change here":   {lostWatch, own},
		"two changes elsewhere and a decision":     {another, another, decider},
		"a change here and a decision":             {own, decider},
		"a late message, a change and a decision":  {another, late, decider},
		"a lost watch, a change and a decision":    {lostWatch, another, decider},
		"a slow recheck, a change and a decision":  {another, recheck, decider},
		"a decision, a sync and a change":          {another, reader, decider},
	} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, known %t", name, known), func(t *testing.T) {
				t.Parallel()
				interleave(lengths(parties), func(order []int) {
					synctest.Test(t, func(t *testing.T) { newCourse(t, known, parties).run(order) })
				})
			})
		}
	}
}

func newCourse(t *testing.T, known bool, parties []func(*course) []func()) *course {
	store := newShared()
	listener := newRecorder(store)
	c := &course{listener: listener}
	c.instance = newInstance(t, store, asDefault, listener)
	if store.change(alice); known {
		c.syncs(alice, 0)
	}
	for _, party := range parties {
		c.parties = append(c.parties, party(c))
	}
	return c
}

func (c *course) run(order []int) {
	for _, party := range order {
		c.parties[party][0]()
		c.parties[party] = c.parties[party][1:]
		synctest.Wait()
	}
	for _, g := range c.gates {
		g.open()
	}
	c.working.Wait()
	synctest.Wait()
	stored := c.store.content(alice).Version
	if got := c.listener.lastSeen(alice); got != stored {
		c.t.Errorf("order %v: the last call was at version %d, stored is %d", order, got, stored)
	}
	if got := c.syncs(alice, 1); got != stored {
		c.t.Errorf("order %v: a sync gets version %d, stored is %d", order, got, stored)
	}
	c.wantRules(alice, fmt.Sprintf("order %v", order))
	if got := c.syncs(alice, stored); got != stored {
		c.t.Errorf("order %v: a sync that has version %d gets %d", order, stored, got)
	}
}

// wantRules checks that the stored rules decide, and are kept.
func (i *instance) wantRules(user mxid.UserID, when string) {
	i.t.Helper()
	want, read := ruleIDs(match.Compile(i.store.content(user).Rules)), 0
	for range 2 {
		if got := ruleIDs(i.rulesOf(i.t.Context(), user, func() { read++ })); !slices.Equal(got, want) {
			i.t.Errorf("%s: rules %q decide, stored are %q", when, got, want)
		}
	}
	if read > 1 {
		i.t.Errorf("%s: rules that are read are not kept", when)
	}
}

func ruleIDs(rules *match.Rules) (ids []string) {
	event, err := match.ReadEvent(`{}`)
	if err != nil {
		panic(err)
	}
	for _, rule := range rules.Explain(event, match.Facts{}).Rules {
		ids = append(ids, rule.RuleID)
	}
	return ids
}

func lengths(parties []func(*course) []func()) []int {
	var lengths []int
	for _, party := range parties {
		c := &course{instance: &instance{store: newShared()}}
		lengths = append(lengths, len(party(c)))
	}
	return lengths
}

// interleave visits every order of the given numbers of steps.
func interleave(left []int, visit func(order []int)) {
	var extend func(order []int)
	extend = func(order []int) {
		ended := true
		for party := range left {
			if left[party] > 0 {
				ended = false
				left[party]--
				extend(append(order, party))
				left[party]++
			}
		}
		if ended {
			visit(slices.Clone(order))
		}
	}
	extend(nil)
}

type chance struct {
	*instance
	random    *rand.Rand
	lossy     bool // messages are lost, and another program writes, so versions may go back
	users     []mxid.UserID
	tokens    map[mxid.UserID]int64
	listeners []*recorder
	later     []func() // late messages
}

func (c *chance) step() {
	user := c.users[c.random.IntN(len(c.users))]
	if c.lossy && c.random.IntN(10) == 0 {
		c.store.edit(user, foreign+c.random.Int64N(1000))
		return
	}
	switch c.random.IntN(12) {
	case 0, 1:
		_ = c.put(user, fmt.Sprint(c.random.Int()))
		c.receive(user, c.store.content(user).Version)
	case 2, 3, 4:
		c.receive(user, c.store.change(user))
	case 5, 6, 7:
		update, _ := c.sync.Since(c.t.Context(), user, c.tokens[user]) // an error keeps the token
		c.tokens[user] = update.Token
	case 8:
		c.store.set(func(s *shared) { s.failing = nil })
	case 9:
		c.store.set(func(s *shared) { s.failing = [2]error{nil, errDown}[c.random.IntN(2)] })
	case 10:
		c.store.set(func(s *shared) { s.slow = time.Duration(c.random.IntN(300)) * time.Millisecond })
	case 11:
		if c.random.IntN(4) == 0 {
			c.store.cut(nil)
		}
		time.Sleep(time.Duration(c.random.IntN(2000)) * time.Millisecond)
	}
}

func (c *chance) receive(user mxid.UserID, version int64) {
	hint := func() { c.store.hint(user, version) }
	switch c.random.IntN(5) {
	case 0:
		if !c.lossy {
			hint()
		}
	case 1:
		c.later = append(c.later, hint)
	case 2:
		hint()
		c.later = append(c.later, hint)
	default:
		hint()
	}
	if n := len(c.later); n > 0 && c.random.IntN(2) == 0 {
		late := c.random.IntN(n)
		c.later[late]()
		c.later = slices.Delete(c.later, late, late+1)
	}
}

func TestRandomEventsEndWithTheNewestVersion(t *testing.T) {
	step := uint64(1)
	if testing.Short() {
		step = 5
	}
	for seed := uint64(0); seed < 150; seed += step {
		inBubble(t, fmt.Sprint(seed), func(t *testing.T) {
			store, random := newShared(), rand.New(rand.NewPCG(seed, 0))
			c := &chance{random: random, lossy: seed >= 100, users: someUsers(4), tokens: map[mxid.UserID]int64{}}
			var listeners []module.ChangeListener
			for n := range 3 {
				e := newRecorder(store)
				e.do = func(context.Context) { time.Sleep(time.Duration(n) * 50 * time.Millisecond) }
				c.listeners, listeners = append(c.listeners, e), append(listeners, e)
			}
			c.instance = newInstance(t, store, asDefault, listeners...)
			for _, user := range c.users {
				c.tokens[user] = c.syncs(user, 0)
			}
			var working sync.WaitGroup
			for range 300 {
				c.step()
				user := c.users[random.IntN(len(c.users))]
				if random.IntN(5) == 0 {
					wait := time.Duration(random.IntN(300)) * time.Millisecond
					working.Go(func() { c.keepRules(t.Context(), user, func() { time.Sleep(wait) }) })
				}
				if random.IntN(10) == 0 { // a sync that other events overtake
					working.Go(func() { _, _ = c.sync.Since(t.Context(), user, 1) })
				}
			}
			working.Wait()
			for _, hint := range c.later {
				hint()
			}
			store.set(func(s *shared) { s.failing = nil })
			time.Sleep(2 * pastRecheck)
			c.check()
		})
	}
}

func (c *chance) check() {
	for _, user := range c.users {
		stored := c.store.content(user).Version
		for n, e := range c.listeners {
			if got := e.lastSeen(user); got != stored && !c.lossy {
				c.t.Errorf("the last call of listener %d was at version %d, stored is %d", n, got, stored)
			}
		}
		if got := c.syncs(user, c.tokens[user]); got != stored {
			c.t.Errorf("a sync gets version %d, stored is %d", got, stored)
		}
		c.wantRules(user, "at the end")
	}
}
