package module_test

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// step is something that happens to a host, or beside it. A test of what follows
// from what is a table of steps and what must be seen after them.
type step func(*instance)

// take takes the steps, and waits for what they set off.
func (i *instance) take(steps ...step) {
	for _, take := range steps {
		take(i)
	}
	synctest.Wait()
}

// What clients of this host do.

func putsRule(id string) step { return func(i *instance) { i.mustPut(alice, id) } }

// hangsUp makes a change for a client that does not wait for the answer.
func hangsUp(i *instance) {
	i.store.gone = context.Canceled
	if err := i.put(alice, "a"); !errors.Is(err, context.Canceled) {
		i.t.Errorf("got error %v", err)
	}
}

func asks(since int64) step { return func(i *instance) { i.syncs(alice, since) } }

func bobAsks(i *instance) { i.syncs(bob, 0) }

// What happens on other hosts.

// elsewhere is a change on another host that nothing is published of yet.
func elsewhere(i *instance) { i.store.change(alice) }

// publishesAgain is the message of the last change, once more.
func publishesAgain(i *instance) { i.store.hint(alice, i.store.Changes) }

func publishes(version int64) step { return func(i *instance) { i.store.hint(alice, version) } }

// elsewherePublished is a change on another host.
func elsewherePublished(i *instance) { i.store.hint(alice, i.store.change(alice)) }

func bobElsewhere(i *instance) { i.store.change(bob) }

func bobElsewherePublished(i *instance) { i.store.hint(bob, i.store.change(bob)) }

// edits is a change by somebody else than the module, with the version that the
// store gives to it.
func edits(version int64) step { return func(i *instance) { i.store.edit(alice, version) } }

func isDeleted(i *instance) { _ = i.store.Delete(i.t.Context(), alice) }

// What happens to the store.

// publishesBeforeTheAnswer has every change be heard of before its caller has the
// answer.
func publishesBeforeTheAnswer(i *instance) {
	i.store.updated = func(user mxid.UserID, version int64) {
		i.store.hint(user, version)
		synctest.Wait()
	}
}

// cutOff ends the watch, which may begin anew at once.
func cutOff(i *instance) { i.store.cut(nil) }

// cutOffForLong ends the watch, which may not begin anew until mayWatch.
func cutOffForLong(i *instance) { i.store.cut(errDown) }

func mayWatch(i *instance) { i.store.set(func(s *shared) { s.refusing = nil }) }

// loadsFail has every load fail until loadsWork.
func loadsFail(i *instance) { i.store.set(func(s *shared) { s.failing = errDown }) }

func isUnreadable(i *instance) {
	i.store.set(func(s *shared) { s.failing = pushrule.Unreadable(errors.New("no JSON")) })
}

func loadsWork(i *instance) { i.store.set(func(s *shared) { s.failing = nil }) }

func loadsTake(d time.Duration) step {
	return func(i *instance) { i.store.set(func(s *shared) { s.slow = d }) }
}

// watchesHang has every watch from now on not begin.
func watchesHang(i *instance) { i.store.set(func(s *shared) { s.silent = true }) }

// losesChangesSince has the store go back to what it had before some steps.
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

// rests waits until no goroutine has anything to do.
func rests(*instance) { synctest.Wait() }

func passes(d time.Duration) step { return func(*instance) { time.Sleep(d) } }

// isRechecked waits until the host has compared its versions with the store's.
func isRechecked(*instance) { time.Sleep(pastRecheck) }

// aThousandTimes takes steps again and again, a millisecond apart.
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
