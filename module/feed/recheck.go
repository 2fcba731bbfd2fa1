package feed

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/retry"
)

const (
	// interest is the time that rules are kept after their last use.
	interest = 10 * time.Minute

	// maxRecheck is the number of users in one request to the store.
	maxRecheck = 500

	retryAfter = time.Second
)

// recheck compares versions of rules with the store: all periodically and when a watch
// begins, and a second later those that the store has not answered, here or for a sync.
func (f *Feed) recheck(ctx context.Context) {
	untilRecheck := func() time.Duration { return retry.Jitter(f.cfg.Recheck) }
	timer := time.NewTimer(untilRecheck())
	defer timer.Stop()
	users := map[mxid.UserID]struct{}{}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(untilRecheck())
			f.addAll(users)
		case <-f.begun:
			f.addAll(users)
		case <-again:
			again = nil
			f.syncs.addFailed(users)
		case <-f.syncs.failed:
			if again == nil {
				again = time.After(retryAfter)
			}
			continue
		}
		if users = f.compare(ctx, users); len(users) > 0 && again == nil {
			again = time.After(retryAfter)
		}
	}
}

func (f *Feed) addAll(users map[mxid.UserID]struct{}) {
	f.rules.addUsed(users, time.Now().Add(-interest))
	f.syncs.addAll(users)
}

// compare compares the versions of users with the store. It returns the users for whom the
// store did not answer.
func (f *Feed) compare(ctx context.Context, users map[mxid.UserID]struct{}) (unanswered map[mxid.UserID]struct{}) {
	for some := range slices.Chunk(slices.Collect(maps.Keys(users)), maxRecheck) {
		kept, watch := f.rules.entries(some)
		versions := f.ruleStore.Versions(ctx, some)
		f.counters.rechecked.Add(int64(len(some)))
		answered := false
		for i, user := range some {
			if version := versions[user]; fault.KindOf(version.Err) != fault.Unavailable {
				f.compared(user, kept[i], watch, version)
				delete(users, user)
				answered = true
			}
		}
		if !answered { // the store is gone
			break
		}
	}
	return users
}

// compared takes the version that the store has of a user. Kept is the entry before the
// store was asked, or nil.
func (f *Feed) compared(user mxid.UserID, kept *entry[userRules], watch int, version module.Result[int64]) {
	switch {
	case kept == nil || kept.isMark():
		f.wakeSyncs(user, version.Value, time.Time{})
	case version.Err == nil && version.Value == kept.value.version:
		f.rules.confirm(kept, watch)
		f.wakeSyncs(user, version.Value, time.Time{})
	default: // unreadable rules, too: the next sync returns the error
		f.rules.discard(user, kept)
		f.missed(user, version.Value)
	}
}

// missed takes a change without a message.
func (f *Feed) missed(user mxid.UserID, version int64) {
	f.counters.missed.Add(1)
	f.wakeSyncs(user, version, time.Time{})
	f.notify(f.ruleListeners, user, time.Time{})
}
