package feed_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Each case begins after a sync of a user with version 1.
func TestASyncReadsTheStoreOnlyIfNecessary(t *testing.T) {
	type steps = []step
	const fromMemory, fromStore = 0, 1 // loads by the sync
	for _, test := range []struct {
		name        string
		steps       steps
		since, want int64
		loads       int
	}{
		{"nothing has changed", nil, 1, 1, fromMemory},
		{"the first sync", nil, 0, 1, fromStore},
		{"a token of another past", nil, 7, 1, fromStore},
		{"a change elsewhere, once received", steps{elsewherePublished, rests}, 1, 2, fromStore},
		{"a change elsewhere, received while the store is slow", steps{loadsTake(time.Second), elsewherePublished}, 1, 2, fromStore},
		{"a change elsewhere that another sync has seen", steps{elsewherePublished, asks(1)}, 2, 2, fromMemory},
		{"a change elsewhere that nobody published", steps{elsewhere, isRechecked}, 1, 2, fromStore},
		{"an edit by somebody else", steps{edits(foreign + 1), isRechecked}, 1, foreign + 1, fromStore},
		{"a second edit by somebody else, whose version is smaller", steps{
			edits(foreign + 1), asks(0), edits(foreign), isRechecked,
		}, foreign + 1, foreign, fromStore},
		{"a change elsewhere after an edit by somebody else", steps{
			edits(foreign + 1), asks(0), elsewherePublished, rests,
		}, foreign + 1, 2, fromStore},
		{"a change here after an edit by somebody else", steps{edits(foreign + 1), asks(0), putsRule("a")}, foreign + 1, 2, fromStore},
		{"a change here", steps{putsRule("a")}, 1, 2, fromStore},
		{"a change here that another sync has seen", steps{putsRule("a"), asks(1), publishesAgain}, 2, 2, fromMemory},
		{"nothing is watched", steps{cutOffForLong, rests}, 1, 1, fromStore},
		{"nothing is watched, and something has changed", steps{cutOffForLong, elsewhere, rests}, 1, 2, fromStore},
		{"a watch has begun anew", steps{cutOff, passes(time.Second)}, 1, 1, fromMemory},
		{"a watch has begun anew, and the store failed then", steps{
			loadsFail, cutOff, passes(time.Second), loadsWork,
		}, 1, 1, fromStore},
		{"the store has gone back", steps{losesChangesSince(putsRule("a")), isRechecked}, 2, 1, fromStore},
		{"a user who was forgotten here", steps{passes(15 * time.Minute)}, 1, 1, fromStore},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			i := newInstance(t, newShared(), asDefault)
			i.take(elsewhere, asks(0))
			for _, take := range test.steps {
				take(i)
			}
			i.wantSync(alice, test.since, test.want, test.loads)
		})
	}
	inBubble(t, "a user nobody knows", func(t *testing.T) {
		i := newInstance(t, newShared(), asDefault)
		i.take(asks(0), bobElsewhere)
		i.wantSync(bob, 2, 2, fromStore)
	})
}

// wantSync checks the version that a sync sees and the number of loads.
func (i *instance) wantSync(user mxid.UserID, since, want int64, loads int) {
	i.t.Helper()
	i.store.set(func(s *shared) { s.single = 0 })
	if got := i.syncs(user, since); got != want {
		i.t.Errorf("got version %d, want %d", got, want)
	}
	if got := i.store.single; got != loads {
		i.t.Errorf("the store was asked %d times, want %d", got, loads)
	}
}

// A sync reads version 1. Before it records this, version 2 is stored and observed.
func TestAnOvertakenSyncDoesNotMakeAnOldVersionCurrent(t *testing.T) {
	for name, steps := range map[string][]step{
		"by one that reads more":                   {elsewhere, asks(0)},
		"by another, after the user was forgotten": {elsewhere, bobAsks /* takes the only place */, asks(0)},
		"by a watch that begins anew, when nothing can be loaded": {
			loadsFail, cutOff, elsewhere, passes(time.Second), loadsWork,
		},
		"by a change here": {putsRule("a")},
	} {
		inBubble(t, name, func(t *testing.T) {
			i := newInstance(t, newShared(), oneUser)
			i.syncs(alice, 0)
			g := newGate()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = i.sync.Since(context.WithValue(t.Context(), gateKey{}, g), alice, 0)
			}()
			synctest.Wait()
			g.next() // it reads
			synctest.Wait()
			for _, take := range steps {
				take(i)
			}
			g.open()
			<-ended
			if got, want := i.syncs(alice, 1), i.store.content(alice).Version; got != want {
				t.Errorf("a sync gets version %d, stored is %d", got, want)
			}
		})
	}
}

func TestTheLagOfChangesIsObservedWithoutListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault)
		i.syncs(alice, 0)
		if _, err := i.sync.Since(t.Context(), alice, 1); err != nil { // waits
			t.Fatal(err)
		}
		for _, user := range []mxid.UserID{alice, bob} { // bob does not sync
			change := module.Change{User: user, Version: store.change(user), Made: time.Now()}
			time.Sleep(3 * time.Second)
			for range 2 {
				store.watch.changed(change)
			}
		}
		if want := []time.Duration{0, 3 * time.Second}; !slices.Equal(i.lags, want) || i.Stats().Notified != 2 {
			t.Errorf("lags %v, %d notified, want %v", i.lags, i.Stats().Notified, want)
		}
	})
}

func TestAFailedSyncReturnsTheErrorAndTheNextSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault)
		i.syncs(alice, 0)
		store.change(alice)
		store.set(func(s *shared) { s.failing = errDown })
		for _, since := range []int64{0, 7} {
			update, err := i.sync.Since(t.Context(), alice, since)
			if fault.KindOf(err) != fault.Unavailable || update.New || update.Token != since || update.Changed == nil {
				t.Errorf("after %d: got %+v, error %v", since, update, err)
			}
		}
		store.set(func(s *shared) { s.failing = nil })
		if got := i.syncs(alice, 0); got != 2 {
			t.Errorf("got version %d, want 2", got)
		}
	})
}

// The store is silent during the sync that the change wakes.
func TestAChangeIsNotLostWhileTheStoreIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(t, newShared(), asDefault)
		token := i.syncs(alice, 0)
		i.take(putsRule("a"), loadsFail)
		update, err := i.sync.Since(t.Context(), alice, token)
		if err == nil || update.New || update.Token != token {
			t.Fatalf("got %+v, %v without a store", update, err)
		}
		loadsWork(i)
		if got := i.syncs(alice, update.Token); got != 2 {
			t.Errorf("got version %d, want 2", got)
		}
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Each case begins after a sync, which is followed by a waiting one.
func TestASyncIsWokenWhenItMayHaveSomethingToSend(t *testing.T) {
	type steps = []step
	for _, test := range []struct {
		name  string
		steps steps
		woken bool
	}{
		{"nothing has changed", steps{isRechecked}, false},
		{"a change here", steps{putsRule("a")}, true},
		{"a change elsewhere", steps{elsewherePublished}, true},
		{"a change elsewhere, and other users take its place", steps{bobAsks, elsewherePublished}, true},
		{"a change of somebody else", steps{bobElsewhere}, false},
		{"a change that nobody published", steps{elsewhere, rests}, false},
		{"the same, in the end", steps{elsewhere, isRechecked}, true},
		{"the same, and other users take its place", steps{bobElsewhere, bobAsks, elsewhere, isRechecked}, true},
		{"a change while cut off", steps{cutOff, elsewhere, passes(time.Second)}, true},
		{"the rules are gone", steps{isDeleted, isRechecked}, true},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			i := newInstance(t, newShared(), oneUser)
			i.syncs(alice, 0)
			update, err := i.sync.Since(t.Context(), alice, 1)
			if err != nil || update.New {
				t.Fatalf("got %+v, %v", update, err)
			}
			for _, take := range test.steps {
				take(i)
			}
			synctest.Wait()
			if got := isClosed(update.Changed); got != test.woken {
				t.Errorf("woken %t, want %t", got, test.woken)
			}
		})
	}
}

// The store answers again with or without a change. The sync does not poll before.
func TestAFailedSyncWakesWhenTheStoreAnswers(t *testing.T) {
	for name, before := range map[string][]step{
		"a first sync":     {},
		"a token of 1":     {asks(0), elsewherePublished},
		"a cut connection": {asks(0), cutOff, elsewhere},
	} {
		inBubble(t, name, func(t *testing.T) {
			i := newInstance(t, newShared(), asDefault)
			i.take(before...)
			since := int64(min(len(before), 1))
			loadsFail(i)
			update, err := i.sync.Since(t.Context(), alice, since)
			if err == nil || update.Token != since {
				t.Fatalf("got %+v, %v", update, err)
			}
			time.Sleep(time.Minute)
			if isClosed(update.Changed) {
				t.Error("woken while the store is silent")
			}
			asked := 0
			i.store.set(func(s *shared) { asked = s.asked })
			if asked < 30 || asked > 70 {
				t.Errorf("the store was asked %d times in a minute", asked)
			}
			loadsWork(i)
			time.Sleep(3 * time.Second)
			if !isClosed(update.Changed) {
				t.Error("not woken")
			}
			if got := i.syncs(alice, since); got == since {
				t.Error("nothing is new")
			}
		})
	}
}

// failing are rules that cannot be read although the store answers, for example if the
// import of the user fails.
type failing struct{ module.RuleService }

func (failing) Content(context.Context, mxid.UserID) (module.Content, error) {
	return module.Content{}, module.Unavailable(errDown)
}

func TestARepeatedlyFailingSyncWaitsInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(t, newShared(), asDefault)
		i.syncs(alice, 0)
		changes := i.Feed.Sync(failing{i.rules})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tries := 0
		for ctx.Err() == nil {
			update, _ := changes.Since(ctx, alice, 0)
			tries++
			select {
			case <-update.Changed:
			case <-ctx.Done():
			}
		}
		if tries < 30 || tries > 62 { // once a second, and at a recheck
			t.Errorf("tried %d times in a minute", tries)
		}
	})
}

func TestEndedSyncsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(t, newShared(), asDefault)
		i.syncs(alice, 0)
		var waits [3]<-chan struct{}
		ctx, cancel := context.WithCancel(t.Context())
		for n, c := range []context.Context{ctx, ctx, t.Context()} {
			update, err := i.sync.Since(c, alice, 0)
			if err != nil {
				t.Fatal(err)
			}
			waits[n] = update.Changed
		}
		cancel()
		synctest.Wait()
		i.mustPut(alice, "a")
		if isClosed(waits[0]) || isClosed(waits[1]) || !isClosed(waits[2]) {
			t.Error("a sync that has ended is woken, or that which waits is not")
		}
	})
}

func TestUsersAreRecheckedWhileRequestsAskForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(t, newShared(), asDefault)
		i.take(elsewhere, asks(0), bobElsewhere, bobAsks)
		for range 30 {
			time.Sleep(time.Minute)
			i.syncs(alice, 1)
		}
		i.store.loads()
		time.Sleep(9 * time.Minute)
		if got := i.store.loads(); got < 6 || got > 18 {
			t.Errorf("in 9 minutes %d users were loaded, want one about 9 times", got)
		}
		time.Sleep(3 * time.Minute)
		i.store.loads()
		time.Sleep(time.Hour)
		if got := i.store.loads(); got != 0 {
			t.Errorf("%d users were loaded for whom nobody asks", got)
		}
		i.syncs(alice, 1)
		i.store.change(alice)
		time.Sleep(pastRecheck)
		if s := i.Stats(); s.Rechecked == 0 || s.Missed != 1 {
			t.Errorf("got %+v, want users rechecked and 1 change missed", s)
		}
	})
}

func TestUsersWithUnreadableRulesAreNotRechecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault, newRecorder(store))
		i.take(elsewhere, asks(0))
		store.set(func(s *shared) { s.failing = pushrule.Unreadable(errors.New("no JSON")) })
		store.loads()
		time.Sleep(pastRecheck)
		if got := i.store.loads(); got != 1 {
			t.Errorf("%d users were loaded, want 1", got)
		}
		time.Sleep(time.Hour)
		if got := i.store.loads(); got != 0 {
			t.Errorf("%d users were loaded for nothing", got)
		}
	})
}

// oneUser leaves memory for one user without pushers.
func oneUser(c *feed.Config) { c.MaxBytes = 2 * 250 }

func TestWhatIsKeptFitsIntoItsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, most = 160 + len("@user000:example.org"), 100
		store := newShared()
		i := newInstance(t, store, func(c *feed.Config) { c.MaxBytes = 2 * each * most })
		for _, user := range someUsers(5 * most) {
			store.change(user)
			i.syncs(user, 0)
		}
		for range 10 { // syncs of a user who is always there
			i.syncs(alice, 0)
		}
		before := i.Stats().Rechecked
		store.cut(nil) // a new watch checks all users
		time.Sleep(time.Second)
		if got := i.Stats().Rechecked - before; got < most*9/10 || got > most*11/10 {
			t.Errorf("%d users are kept, want about %d", got, most)
		}
	})
}
