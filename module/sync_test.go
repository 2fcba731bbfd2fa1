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
	for name, test := range map[string]struct {
		before func(*instance)
		user   mxid.UserID // alice where none is given
		since  int64
		want   int64
		loads  int // by the sync
	}{
		"nothing has changed":     {since: 1, want: 1},
		"the first sync":          {since: 0, want: 1, loads: 1},
		"a token of another past": {since: 7, want: 1, loads: 1},
		"a user nobody knows": {
			before: func(i *instance) { i.store.change("@bob:example.org") },
			user:   "@bob:example.org", since: 2, want: 2, loads: 1,
		},
		"a change elsewhere, once heard": {
			before: func(i *instance) {
				i.store.hint(alice, i.store.change(alice))
				synctest.Wait()
			},
			since: 1, want: 2, loads: 1,
		},
		"a change elsewhere, heard while the store is slow": {
			before: func(i *instance) {
				i.store.set(func(s *shared) { s.slow = time.Second })
				i.store.hint(alice, i.store.change(alice))
			},
			since: 1, want: 2, loads: 1,
		},
		"a change elsewhere, known from another sync": {
			before: func(i *instance) {
				i.store.hint(alice, i.store.change(alice))
				i.syncs(alice, 1)
			},
			since: 2, want: 2,
		},
		"a change elsewhere, unheard until it is looked for": {
			before: func(i *instance) {
				i.store.change(alice)
				time.Sleep(pastRecheck)
			},
			since: 1, want: 2, loads: 1,
		},
		"an edit by somebody else, unheard until it is looked for": {
			before: func(i *instance) {
				i.store.edit(alice, foreign+1)
				time.Sleep(pastRecheck)
			},
			since: 1, want: foreign + 1, loads: 1,
		},
		"a second edit by somebody else, whose version is smaller": {
			before: func(i *instance) {
				i.store.edit(alice, foreign+1)
				i.syncs(alice, 0)
				i.store.edit(alice, foreign)
				time.Sleep(pastRecheck)
			},
			since: foreign + 1, want: foreign, loads: 1,
		},
		"a change elsewhere after an edit by somebody else": {
			before: func(i *instance) {
				i.store.edit(alice, foreign+1)
				i.syncs(alice, 0)
				i.store.hint(alice, i.store.change(alice))
				synctest.Wait()
			},
			since: foreign + 1, want: 2, loads: 1,
		},
		"a change here after an edit by somebody else": {
			before: func(i *instance) {
				i.store.edit(alice, foreign+1)
				i.syncs(alice, 0)
				i.mustPut(alice, "a")
			},
			since: foreign + 1, want: 2, loads: 1,
		},
		"a change here": {
			before: func(i *instance) { i.mustPut(alice, "a") },
			since:  1, want: 2, loads: 1,
		},
		"a change here, known": {
			before: func(i *instance) { i.mustPut(alice, "a") },
			since:  2, want: 2,
		},
		"nothing is watched": {
			before: func(i *instance) {
				i.store.cut(errDown)
				synctest.Wait()
			},
			since: 1, want: 1, loads: 1,
		},
		"nothing is watched, and something has changed": {
			before: func(i *instance) {
				i.store.cut(errDown)
				i.store.change(alice)
				synctest.Wait()
			},
			since: 1, want: 2, loads: 1,
		},
		"a watch has begun anew": {
			before: func(i *instance) {
				i.store.cut(nil)
				time.Sleep(time.Second)
			},
			since: 1, want: 1,
		},
		"a watch has begun anew, and the store failed then": {
			before: func(i *instance) {
				i.store.set(func(s *shared) { s.failing = errDown })
				i.store.cut(nil)
				time.Sleep(time.Second)
				i.store.set(func(s *shared) { s.failing = nil })
			},
			since: 1, want: 1, loads: 1,
		},
		"the store has gone back": {
			before: func(i *instance) {
				before := i.store.content(alice)
				i.mustPut(alice, "a")
				i.store.goBack(alice, before)
				time.Sleep(pastRecheck)
			},
			since: 2, want: 1, loads: 1,
		},
		"a user who was forgotten here": {
			before: func(i *instance) { time.Sleep(15 * time.Minute) },
			since:  1, want: 1, loads: 1,
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			i := newInstance(t, newShared(), asDefault)
			i.syncs(alice, 0)
			if test.before != nil {
				test.before(i)
			}
			i.store.set(func(s *shared) { s.single = 0 })
			user := test.user
			if user == "" {
				user = alice
			}
			if got := i.syncs(user, test.since); got != test.want {
				t.Errorf("got version %d, want %d", got, test.want)
			}
			if got := i.store.single; got != test.loads {
				t.Errorf("the store was asked %d times, want %d", got, test.loads)
			}
		})
	}
}

// A sync reads version 1, and is overtaken before it takes that in: version 2
// is what is stored then.
func TestASyncThatIsOvertakenDoesNotMakeAnOldVersionCurrent(t *testing.T) {
	for name, overtake := range map[string]func(*instance){
		"by one that reads more": func(i *instance) {
			i.store.change(alice)
			i.syncs(alice, 0)
		},
		"by another, after the user was forgotten": func(i *instance) {
			i.store.change(alice)
			i.syncs("@bob:example.org", 0) // takes the only place
			i.syncs(alice, 0)
		},
		"by a watch that begins anew, when nothing can be loaded": func(i *instance) {
			i.store.set(func(s *shared) { s.failing = errDown })
			i.store.cut(nil)
			i.store.change(alice)
			time.Sleep(time.Second)
			i.store.set(func(s *shared) { s.failing = nil })
		},
		"by a change here": func(i *instance) { i.mustPut(alice, "a") },
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
			overtake(i)
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

func TestUsersAreLookedAfterWhileSomebodyAsksForThem(t *testing.T) {
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

func TestNobodyIsLookedAfterWhoseRulesCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared()
		i := newInstance(t, store, asDefault, &ear{})
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
		told := &ear{}
		i := newInstance(t, store, func(c *module.FeedConfig) { c.MaxUsers = most }, told)
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
