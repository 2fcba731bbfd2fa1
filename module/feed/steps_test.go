package feed_test

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/pushrule"
)

// step is an event on a host or elsewhere. Tests are tables of steps and their expected
// results.
type step func(*instance)

// take takes the steps, and waits for their effects.
func (i *instance) take(steps ...step) {
	for _, take := range steps {
		take(i)
	}
	synctest.Wait()
}

// Requests to this host.

func putsRule(id string) step { return func(i *instance) { i.mustPut(alice, id) } }

// hangsUp makes a change for a client that cancels the request.
func hangsUp(i *instance) {
	i.store.gone = context.Canceled
	if err := i.put(alice, "a"); !errors.Is(err, context.Canceled) {
		i.t.Errorf("got error %v", err)
	}
}

func asks(since int64) step { return func(i *instance) { i.syncs(alice, since) } }

func bobAsks(i *instance) { i.syncs(bob, 0) }

// Events on other hosts.

// elsewhere is a change on another host that is not published yet.
func elsewhere(i *instance) { i.store.change(alice) }

func publishesAgain(i *instance) { i.store.hint(alice, i.store.Changes) }

func publishes(version int64) step { return func(i *instance) { i.store.hint(alice, version) } }

func elsewherePublished(i *instance) { i.store.hint(alice, i.store.change(alice)) }

func bobElsewhere(i *instance) { i.store.change(bob) }

func bobElsewherePublished(i *instance) { i.store.hint(bob, i.store.change(bob)) }

// edits is a change by another program, with the version that the store assigns.
func edits(version int64) step { return func(i *instance) { i.store.edit(alice, version) } }

func isDeleted(i *instance) { _ = i.store.Delete(i.t.Context(), alice) }

// Events of the store.

// cutOff ends the watch; it may restart at once.
func cutOff(i *instance) { i.store.cut(nil) }

// cutOffForLong ends the watch; it may not restart until mayWatch.
func cutOffForLong(i *instance) { i.store.cut(errDown) }

func mayWatch(i *instance) { i.store.set(func(s *shared) { s.refusing = nil }) }

func loadsFail(i *instance) { i.store.set(func(s *shared) { s.failing = errDown }) }

func isUnreadable(i *instance) {
	i.store.set(func(s *shared) { s.failing = pushrule.Unreadable(errors.New("no JSON")) })
}

func loadsWork(i *instance) { i.store.set(func(s *shared) { s.failing = nil }) }

func loadsTake(d time.Duration) step {
	return func(i *instance) { i.store.set(func(s *shared) { s.slow = d }) }
}

func watchesHang(i *instance) { i.store.set(func(s *shared) { s.silent = true }) }

// losesChangesSince restores the store to its state before some steps.
func losesChangesSince(steps ...step) step {
	return func(i *instance) {
		before := i.store.content(alice)
		for _, take := range steps {
			take(i)
		}
		i.store.goBack(alice, before)
	}
}

// Time.

func rests(*instance) { synctest.Wait() }

func passes(d time.Duration) step { return func(*instance) { time.Sleep(d) } }

func isRechecked(*instance) { time.Sleep(pastRecheck) }

// aThousandTimes repeats steps, a millisecond apart.
func aThousandTimes(steps ...step) step {
	return func(i *instance) {
		for range 1000 {
			for _, take := range steps {
				take(i)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
