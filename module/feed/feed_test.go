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
	updated  func(user mxid.UserID, version int64)
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
	s.Unlock()
	contents, err := s.load(ctx, users)
	all := map[mxid.UserID]module.Result[module.Content]{}
	for user, content := range contents {
		all[user] = module.Result[module.Content]{Value: content, Err: err}
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
	if s.updated != nil {
		s.updated(user, content.Version)
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

type recorder struct {
	do func(ctx context.Context, user mxid.UserID) // called before recording

	mu       sync.Mutex
	versions map[mxid.UserID][]int64
}

func (r *recorder) PushRulesChanged(ctx context.Context, user mxid.UserID, version int64) {
	if r.do != nil {
		r.do(ctx, user)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.versions == nil {
		r.versions = map[mxid.UserID][]int64{}
	}
	r.versions[user] = append(r.versions[user], version)
}

func (r *recorder) of(user mxid.UserID) []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.versions[user])
}

func (r *recorder) users() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.versions)
}

type instance struct {
	*feed.Feed
	t     *testing.T
	store *shared
	rules module.RuleService
	sync  module.SyncService
	end   func() // ends the host and waits

	compiled *match.Cache

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
	i := &instance{t: t, store: store, compiled: match.NewCache(1 << 20)}
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

func (i *instance) keepRules(ctx context.Context, user mxid.UserID, then func()) {
	i.KeepRules(ctx, []mxid.UserID{user}, func() map[mxid.UserID]*match.Entry {
		entry, _ := i.compiled.Entry(user, i.store.content(user).Rules)
		then()
		return map[mxid.UserID]*match.Entry{user: entry}
	})
}

func (i *instance) keptRules(user mxid.UserID) *match.Rules {
	members := []match.Member{{User: user}}
	i.FillRules(members)
	return members[0].Rules
}

func (i *instance) storedRules(user mxid.UserID) *match.Rules {
	return i.compiled.Rules(user, i.store.content(user).Rules)
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
	update, err := i.sync.Since(i.t.Context(), user, since)
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
	type received = []int64
	for _, test := range []struct {
		name  string
		steps steps    // after the host observed version 1
		want  received // versions
	}{
		{"made here", steps{putsRule("a")}, received{2}},
		{"made here, once", steps{putsRule("a"), rests, publishes(2)}, received{2}},
		{"made here, once, though received of before", steps{publishesBeforeTheAnswer, putsRule("a")}, received{2}},
		{"made here, not those that change nothing", steps{putsRule("a"), putsRule("a")}, received{2}},
		{"made here, for a request that went away", steps{hangsUp, publishes(2)}, received{2}},
		{"made elsewhere", steps{elsewherePublished}, received{2}},
		{"made elsewhere, once", steps{elsewherePublished, publishes(2), rests, publishes(2)}, received{2}},
		{"made elsewhere, received of in another order", steps{elsewhere, elsewhere, publishes(3), rests, publishes(2)}, received{3}},
		{"made elsewhere, received of late", steps{elsewhere, elsewhere, publishes(2), rests, publishes(3)}, received{2, 3}},
		{"after a version that there is not", steps{publishes(1 << 62), rests, elsewherePublished}, received{1 << 62, 2}},
		{"among those of somebody else", steps{
			edits(foreign), isRechecked, elsewherePublished, rests, edits(foreign + 1), isRechecked, putsRule("a"),
		}, received{foreign, 2, foreign + 1, 3}},
		{"found by a sync first", steps{elsewhere, asks(1), publishes(2)}, received{2}},
		{"that nobody published", steps{elsewhere, isRechecked}, received{2}},
		{"while nothing was watched", steps{cutOff, elsewhere, passes(time.Second)}, received{2}},
		{"while nothing was watched for long", steps{
			cutOffForLong, passes(5 * time.Second), elsewhere, mayWatch, passes(8 * time.Second),
		}, received{2}},
		{"while nothing was watched, soon after a long time", steps{
			cutOffForLong, passes(time.Minute), mayWatch, passes(2 * time.Second), cutOff, elsewhere, passes(200 * time.Millisecond),
		}, received{2}},
		{"that could not be checked when the watch began", steps{
			cutOff, elsewhere, loadsFail, passes(time.Second), loadsWork, passes(10 * time.Second),
		}, received{2}},
		{"that the store has lost, which could not be checked for long", steps{
			losesChangesSince(elsewherePublished), loadsFail, passes(2 * pastRecheck), loadsWork, passes(2 * time.Second),
		}, received{2, 1}},
		{"while the user's rules cannot be read", steps{
			isUnreadable, elsewherePublished, isRechecked, loadsWork, elsewherePublished,
		}, received{2, 3}},
		{"that the store has lost", steps{losesChangesSince(elsewherePublished, rests), isRechecked}, received{2, 1}},
		{"after some that the store has lost", steps{losesChangesSince(elsewherePublished, rests), elsewherePublished}, received{2, 3}},
		{"of a user who was gone", steps{isDeleted, isRechecked, elsewherePublished}, received{2}},
		{"not that a user is gone", steps{isDeleted, isRechecked}, nil},
		{"not those of somebody else", steps{bobElsewherePublished}, nil},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			listener := &recorder{}
			i := newInstance(t, newShared(), asDefault, listener)
			i.take(elsewhere, asks(0))
			i.take(test.steps...)
			if got := listener.of(alice); !slices.Equal(got, test.want) {
				t.Errorf("received %v, want %v", got, test.want)
			}
		})
	}
}

func TestListenersAreNotifiedOfUnknownUsers(t *testing.T) {
	for _, test := range []struct {
		name  string
		steps []step
		want  []int64
	}{
		{"made elsewhere", []step{elsewherePublished}, []int64{2}},
		{"found by a first sync", []step{elsewhere, asks(0), publishes(2)}, []int64{2}},
		{"while the store fails", []step{loadsFail, elsewherePublished}, []int64{2}},
		{"not that a user syncs", []step{elsewhere, asks(0), asks(2), isRechecked}, nil},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			store, listener := newShared(), &recorder{}
			store.Changes = 1
			i := newInstance(t, store, asDefault, listener)
			i.take(test.steps...)
			if got := listener.of(alice); !slices.Equal(got, test.want) {
				t.Errorf("received %v, want %v", got, test.want)
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

func TestListenersAreNotifiedWhenTheFeedIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		listener := &recorder{}
		i := newInstance(t, store, func(c *feed.Config) { c.MaxUsers = 1 }, listener)
		users := someUsers(5)
		for _, user := range users {
			store.hint(user, store.change(user))
		}
		i.syncs(alice, 0) // fills the feed
		synctest.Wait()
		if listener.users() != len(users)+1 {
			t.Errorf("received %d users, want %d", listener.users(), len(users)+1)
		}
	})
}

func TestVersionsGrowAcrossForgettingAUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		listener := &recorder{}
		i := newInstance(t, store, func(c *feed.Config) { c.MaxUsers = 1 }, listener)
		store.change(alice)
		i.syncs(alice, 0)
		store.hint(alice, store.change(alice))
		store.set(func(s *shared) { s.meeting = newGate() })
		store.hint(alice, 1) // starts a check
		synctest.Wait()
		store.meeting.next() // the check reads
		synctest.Wait()
		free := newGate()
		free.open()
		ctx := context.WithValue(t.Context(), gateKey{}, free)
		if _, err := i.sync.Since(ctx, "@bob:example.org", 0); err != nil { // fills the feed
			t.Fatal(err)
		}
		if err := i.rules.Put(ctx, alice, pushrule.Room, "a", pushrule.Draft{}, pushrule.Position{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		store.meeting.open()
		time.Sleep(time.Minute)
		if got, want := listener.of(alice), []int64{2, 4}; !slices.Equal(got, want) {
			t.Errorf("received %v, want %v", got, want)
		}
	})
}

func someUsers(n int) []mxid.UserID {
	users := make([]mxid.UserID, n)
	for i := range users {
		users[i] = mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
	}
	return users
}

func TestKnownVersionsDoNotReadTheStore(t *testing.T) {
	type steps = []step
	const nobody, aListener = 0, 1
	for _, test := range []struct {
		name      string
		listeners int
		steps     steps
		most      int // users who are loaded
	}{
		{"an unknown user, for nobody", nobody, steps{bobElsewherePublished}, 0},
		{"an unknown user", aListener, steps{bobElsewherePublished}, 0},
		{"a change here that was received of before", aListener, steps{publishesAgain}, 0},
		{"a change here", aListener, steps{putsRule("b"), publishesAgain}, 0},
		{"a change elsewhere", aListener, steps{elsewherePublished}, 0},
		{"an old version", aListener, steps{publishes(1)}, 1},
		{"a thousand changes elsewhere", aListener, steps{aThousandTimes(elsewherePublished)}, 0},
		{"a thousand old versions in a second, with checks of a tenth", aListener, steps{
			loadsTake(100 * time.Millisecond), aThousandTimes(publishes(1)),
		}, 11},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			store := newShared()
			listener := &recorder{}
			var listeners []module.ChangeListener
			if test.listeners == aListener {
				listeners = append(listeners, listener)
			}
			i := newInstance(t, store, asDefault, listeners...)
			i.syncs(alice, 0)
			i.mustPut(alice, "a")
			store.loads()
			i.take(append(test.steps, passes(10*time.Second))...)
			if got := store.loads(); got > test.most {
				t.Errorf("%d users were loaded, want at most %d", got, test.most)
			}
			got := listener.of(alice)
			if test.listeners == aListener && got[len(got)-1] != store.content(alice).Version {
				t.Errorf("received %v last, stored is %d", got[len(got)-1], store.content(alice).Version)
			}
		})
	}
}

func TestManyUsersAreCheckedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		listener := &recorder{}
		i := newInstance(t, store, asDefault, listener)
		users := someUsers(1001)
		for _, user := range users {
			store.change(user)
			store.hint(user, store.change(user))
			i.syncs(user, 0)
		}
		synctest.Wait()
		store.asked, store.slow = 0, time.Second
		for _, user := range users {
			store.hint(user, 1)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if listener.users() != len(users) || store.asked == 0 || store.asked > 4 {
			t.Errorf("received %d users after %d checks, want %d after 3 or 4", listener.users(), store.asked, len(users))
		}
	})
}

func TestASlowListenerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		goOn := make(chan struct{})
		slow := &recorder{do: func(context.Context, mxid.UserID) { <-goOn }}
		quick := &recorder{}
		i := newInstance(t, store, asDefault, slow, quick)
		i.syncs(alice, 0) // which makes rules: the first change
		synctest.Wait()
		began := time.Now()
		for n := range 10 {
			i.mustPut(alice, fmt.Sprint(n))
			synctest.Wait()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the requests took %v", took)
		}
		if got := quick.of(alice); len(got) != 11 {
			t.Errorf("another listener received %v, want 11 changes", got)
		}
		if got := i.Stats().Waiting; got != 1 {
			t.Errorf("the changes of %d users wait, want 1", got)
		}
		close(goOn)
		synctest.Wait()
		if got, want := slow.of(alice), []int64{1, 11}; !slices.Equal(got, want) {
			t.Errorf("it received %v, want %v", got, want)
		}
	})
}

func TestADroppedChangeIsCountedAndNotifiedLater(t *testing.T) {
	for name, change := range map[string]func(i *instance, user mxid.UserID){
		"made here": func(i *instance, user mxid.UserID) {
			i.store.change(user)
			i.mustPut(user, "a")
		},
		"made elsewhere": func(i *instance, user mxid.UserID) { i.store.hint(user, i.store.change(user)) },
	} {
		inBubble(t, name, func(t *testing.T) {
			store := newShared()
			goOn := make(chan struct{})
			slow := &recorder{do: func(context.Context, mxid.UserID) { <-goOn }}
			i := newInstance(t, store, asDefault, slow)
			users := someUsers(1 + feed.DefaultConfig().MaxQueued + 3)
			for n, user := range users {
				change(i, user)
				if n%100 == 0 { // before the queue is full
					synctest.Wait()
				}
			}
			synctest.Wait()
			if s := i.Stats(); s.Waiting != 10_000 || s.Dropped != 3 {
				t.Errorf("%d wait and %d were dropped, want 10000 and 3", s.Waiting, s.Dropped)
			}
			time.Sleep(time.Hour)
			close(goOn)
			time.Sleep(pastRecheck)
			if got := slow.users(); got != len(users) {
				t.Errorf("it received %d users, want %d", got, len(users))
			}
		})
	}
}

func TestAPanickingListenerAffectsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		panics := true
		nervous := &recorder{do: func(context.Context, mxid.UserID) {
			if panics {
				panic("at the disco")
			}
		}}
		calm := &recorder{}
		i := newInstance(t, store, asDefault, nervous, calm)
		i.syncs(alice, 0)
		synctest.Wait()
		i.mustPut(alice, "a")
		synctest.Wait()
		panics = false
		i.mustPut(alice, "b")
		synctest.Wait()
		if got, want := nervous.of(alice), []int64{3}; !slices.Equal(got, want) {
			t.Errorf("after its panics it received %v, want %v", got, want)
		}
		if got, want := calm.of(alice), []int64{1, 2, 3}; !slices.Equal(got, want) {
			t.Errorf("the other received %v, want %v", got, want)
		}
		if s := i.Stats(); s.Panics != 2 || s.Notified != 7 {
			t.Errorf("got %+v, want 2 panics in 6 calls, and a woken sync", s)
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
		"while a listener is busy": {asks(0), bobAsks},
		"while checking":           {asks(0), loadsTake(time.Second), elsewherePublished, publishes(1)},
		"while the store fails":    {asks(0), loadsFail, elsewherePublished, publishes(1)},
		"while rechecking":         {asks(0), loadsTake(10 * time.Second), cutOff, passes(time.Second)},
		"while nothing is watched": {cutOffForLong},
		"while a watch begins":     {watchesHang, cutOff, passes(time.Second)},
	} {
		inBubble(t, name, func(t *testing.T) {
			store := newShared()
			calls := 0
			busy := &recorder{do: func(ctx context.Context, _ mxid.UserID) {
				calls++
				<-ctx.Done()
			}}
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

func TestChangesBeforeRunAreNotifiedByIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		listener := &recorder{}
		feed, err := feed.New(module.Stores{Rules: store}, feed.DefaultConfig(), nil, feed.Listeners{Rules: []module.ChangeListener{listener}})
		if err != nil {
			t.Fatal(err)
		}
		rules := service.New(module.Stores{Rules: store}, feed, service.Options{}).Rules()
		if _, err := rules.Content(t.Context(), alice); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go feed.Run(ctx)
		synctest.Wait()
		cancel()
		if got, want := listener.of(alice), []int64{1}; !slices.Equal(got, want) {
			t.Errorf("received %v, want %v", got, want)
		}
	})
}

func TestFeedConfigErrorsNameTheField(t *testing.T) {
	t.Parallel()
	_, err := feed.New(module.Stores{Rules: newShared()}, feed.Config{}, nil, feed.Listeners{})
	for _, field := range []string{"Recheck", "MaxUsers", "MaxQueued"} {
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

func answers(c *course) []func() {
	c.store.set(func(s *shared) { s.meeting = newGate() })
	c.gates = append(c.gates, c.store.meeting)
	return []func(){c.store.meeting.next, c.store.meeting.next}
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
		"a slow check after a change, and a sync":  {another, late, answers, reader},
		"a slow check between two changes":         {another, late, answers, another},
		"a slow check and a change here":           {another, late, answers, own},
		"a change here and a slow check of it":     {own, late, answers, answers},
		"a watch that is lost, a change, a sync":   {lostWatch, another, reader},
		"a watch that is lost and a change here":   {lostWatch, own},
		"two changes elsewhere and a decision":     {another, another, decider},
		"a change here and a decision":             {own, decider},
		"a late hint, a change and a decision":     {another, late, decider},
		"a lost watch, a change and a decision":    {lostWatch, another, decider},
		"a check of a change, and a decision":      {late, answers, decider},
	} {
		for _, known := range []bool{true, false} {
			if !known && strings.Contains(name, "lost") {
				continue // unknown users are not tracked
			}
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
	listener := &recorder{}
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
	received, stored := c.listener.of(alice), c.store.content(alice).Version
	if len(received) == 0 || received[len(received)-1] != stored || !slices.IsSorted(received) {
		c.t.Errorf("order %v: received %v, stored is %d", order, received, stored)
	}
	if got := c.syncs(alice, 1); got != stored {
		c.t.Errorf("order %v: a sync gets version %d, stored is %d", order, got, stored)
	}
	if got := c.keptRules(alice); got != nil && got != c.storedRules(alice) {
		c.t.Errorf("order %v: old rules decide", order)
	}
	if c.keepRules(c.t.Context(), alice, func() {}); c.keptRules(alice) != c.storedRules(alice) {
		c.t.Errorf("order %v: rules that are read are not kept", order)
	}
	if got := c.syncs(alice, stored); got != stored {
		c.t.Errorf("order %v: a sync that has version %d gets %d", order, stored, got)
	}
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
	edited    bool // another program writes, so versions may go back
	users     []mxid.UserID
	tokens    map[mxid.UserID]int64
	listeners []*recorder
	later     []func() // late messages
}

func (c *chance) step() {
	user := c.users[c.random.IntN(len(c.users))]
	if c.edited && c.random.IntN(10) == 0 {
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

func TestRandomEventsKeepVersionsGrowingAndNotifyTheLast(t *testing.T) {
	for seed := range uint64(150) {
		inBubble(t, fmt.Sprint(seed), func(t *testing.T) {
			store, random := newShared(), rand.New(rand.NewPCG(seed, 0))
			c := &chance{random: random, edited: seed >= 100, users: someUsers(4), tokens: map[mxid.UserID]int64{}}
			var listeners []module.ChangeListener
			for n := range 3 {
				e := &recorder{do: func(context.Context, mxid.UserID) {
					time.Sleep(time.Duration(n) * 50 * time.Millisecond)
				}}
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
			received := e.of(user)
			if !c.edited && !slices.IsSorted(received) || len(received) == 0 || received[len(received)-1] != stored {
				c.t.Errorf("listener %d received %v, stored is %d", n, received, stored)
			}
		}
		if got := c.syncs(user, c.tokens[user]); got != stored {
			c.t.Errorf("a sync gets version %d, stored is %d", got, stored)
		}
		if got := c.keptRules(user); got != nil && got != c.storedRules(user) {
			c.t.Error("old rules decide")
		}
		if c.keepRules(c.t.Context(), user, func() {}); c.keptRules(user) != c.storedRules(user) {
			c.t.Error("rules that are read are not kept")
		}
	}
}
