package module_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Each case begins with a user who has synced, and has version 1.
func TestASyncAsksTheStoreOnlyWhereThatMayKnowMore(t *testing.T) {
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
		{"a change elsewhere, once heard of", steps{elsewherePublished, rests}, 1, 2, fromStore},
		{"a change elsewhere, heard of while the store is slow", steps{loadsTake(time.Second), elsewherePublished}, 1, 2, fromStore},
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
		{"a change here that the token has", steps{putsRule("a")}, 2, 2, fromMemory},
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
			i.syncs(alice, 0)
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

// wantSync holds a sync against the version that it must see and the loads that
// it may take.
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

// A sync reads version 1, and is overtaken before it takes that in: version 2
// is what is stored then.
func TestASyncThatIsOvertakenDoesNotMakeAnOldVersionCurrent(t *testing.T) {
	for name, steps := range map[string][]step{
		"by one that reads more":                   {elsewhere, asks(0)},
		"by another, after the user was forgotten": {elsewhere, bobAsks /* takes the only place */, asks(0)},
		"by a watch that begins anew, when nothing can be loaded": {
			loadsFail, cutOff, elsewhere, passes(time.Second), loadsWork,
		},
		"by a change here": {putsRule("a")},
	} {
		inBubble(t, name, func(t *testing.T) {
			i := newInstance(t, newShared(), func(c *module.FeedConfig) { c.MaxUsers = 1 })
			i.syncs(alice, 0)
			g := newGate()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _, _ = i.sync.ContentSince(context.WithValue(t.Context(), gateKey{}, g), alice, 0)
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

func TestTheVersionIsThatOfTheContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(t, newShared(), asDefault)
		want := func(want int64, loads int) {
			t.Helper()
			i.store.loads()
			if got, err := i.sync.Version(t.Context(), alice); err != nil || got != want {
				t.Errorf("got version %d, error %v, want %d", got, err, want)
			}
			if got := i.store.loads(); got != loads {
				t.Errorf("the store was asked %d times, want %d", got, loads)
			}
		}
		want(1, 1) // which makes the rules
		want(1, 0)
		i.mustPut(alice, "a")
		want(2, 0)
		i.store.hint(alice, i.store.change(alice))
		synctest.Wait()
		want(3, 0)
		i.store.cut(errDown)
		i.store.change(alice)
		synctest.Wait()
		want(4, 1)
		want(4, 1)
	})
}

func TestASyncWhoseLoadFailsSaysSoAndTheNextIsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault)
		i.syncs(alice, 0)
		store.change(alice)
		store.set(func(s *shared) { s.failing = errDown })
		if _, changed, err := i.sync.ContentSince(t.Context(), alice, 0); fault.KindOf(err) != fault.Unavailable || changed {
			t.Errorf("got changed %t, error %v", changed, err)
		}
		if _, err := i.sync.Version(t.Context(), "@bob:example.org"); !errors.Is(err, errDown) {
			t.Errorf("got error %v", err)
		}
		store.set(func(s *shared) { s.failing = nil })
		if got := i.syncs(alice, 0); got != 2 {
			t.Errorf("got version %d, want 2", got)
		}
	})
}

func TestUsersAreRecheckedWhileSomebodyAsksForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(t, newShared(), asDefault)
		i.syncs(alice, 0)
		i.syncs("@bob:example.org", 0)
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

func TestUsersWhoseRulesCannotBeReadAreNotRechecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault, &recorder{})
		i.syncs(alice, 0)
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

func TestNoMoreUsersAreRememberedThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 100
		store := newShared()
		listener := &recorder{}
		i := newInstance(t, store, func(c *module.FeedConfig) { c.MaxUsers = most }, listener)
		users := someUsers(5 * most)
		for n, user := range users {
			switch version := store.change(user); n % 3 {
			case 0:
				i.syncs(user, 0)
			case 1:
				store.hint(user, version)
			case 2:
				i.mustPut(user, "a")
			}
		}
		synctest.Wait()
		for _, user := range users {
			i.syncs(user, store.content(user).Version)
		}
		before := i.Stats().Rechecked
		store.cut(nil) // all that is known is looked at when a watch begins
		time.Sleep(time.Second)
		if got := i.Stats().Rechecked - before; got != most {
			t.Errorf("%d users are remembered, want %d", got, most)
		}
	})
}
