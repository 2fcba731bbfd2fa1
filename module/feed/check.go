package feed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

const (
	// interest is the time that a user without compiled rules is tracked after the last
	// request.
	interest = 10 * time.Minute

	// maxCheck is the number of users in one request to the store.
	maxCheck = 500

	retryCheck = time.Second
)

func (f *Feed) watchStore(ctx context.Context) {
	f.watchRepeatedly(ctx, func() (watched bool, err error) {
		err = fmt.Errorf("feed: watch push rules: %w", f.store.Watch(ctx, f.beginWatch, f.received))
		return f.endWatch(), err
	})
}

// watchRepeatedly calls watch until ctx ends. Watched reports whether the watch had begun.
func (f *Feed) watchRepeatedly(ctx context.Context, watch func() (watched bool, err error)) {
	first := true
	retry.Repeat(ctx, 100*time.Millisecond, time.Second, func() bool {
		watched, err := watch()
		if (watched || first) && ctx.Err() == nil {
			f.observer.Report(observe.FeedDisconnected, err)
		}
		first = false
		return watched
	})
}

// beginWatch marks all versions as not current: changes may have been missed.
func (f *Feed) beginWatch() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches++
	f.watch = f.watches
	f.checkAll = true
	signal(f.wake)
}

// endWatch reports whether a watch had begun.
func (f *Feed) endWatch() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	watched := f.watch != 0
	f.watch = 0
	return watched
}

func (f *Feed) isWatching() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.watch != 0
}

// checkStore compares versions with the store: all of them periodically and when a watch
// begins, doubted ones at once.
func (f *Feed) checkStore(ctx context.Context) {
	timer := time.NewTimer(f.untilRecheck())
	defer timer.Stop()
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(f.untilRecheck())
			all = true
		case <-f.wake:
		}
		if failed := f.check(ctx, f.due(all)); len(failed) > 0 {
			f.checkAgain(failed)
			if retry.Sleep(ctx, retryCheck) != nil {
				return
			}
		}
	}
}

func (f *Feed) untilRecheck() time.Duration { return retry.Jitter(f.cfg.Recheck) }

// due returns all users, or only the users to check at once. It forgets users without
// recent requests.
func (f *Feed) due(all bool) []mxid.UserID {
	f.mu.Lock()
	defer f.mu.Unlock()
	users := f.toCheck
	f.toCheck = map[mxid.UserID]struct{}{}
	if !all && !f.checkAll {
		return slices.Collect(maps.Keys(users))
	}
	f.checkAll = false
	maps.DeleteFunc(f.users, func(_ mxid.UserID, o *observed) bool {
		return !o.doubted && !o.owes() && o.rules == nil && time.Since(time.Unix(o.used, 0)) > interest
	})
	return slices.Collect(maps.Keys(f.users))
}

func (f *Feed) check(ctx context.Context, users []mxid.UserID) (failed []mxid.UserID) {
	for len(users) > 0 {
		some := users[:min(len(users), maxCheck)]
		users = users[len(some):]
		loads := f.beginChecks(some)
		unavailable := f.finishChecks(loads, f.store.Versions(ctx, some))
		failed = append(failed, unavailable...)
		if len(unavailable) > 0 && len(unavailable) == len(loads) { // the store is gone
			return append(failed, users...)
		}
	}
	return failed
}

func (f *Feed) beginChecks(users []mxid.UserID) []load {
	f.mu.Lock()
	defer f.mu.Unlock()
	loads := make([]load, 0, len(users))
	for _, user := range users {
		if o, found := f.users[user]; found {
			loads = append(loads, load{user, o, f.watch})
		}
	}
	return loads
}

func (f *Feed) finishChecks(loads []load, versions map[mxid.UserID]module.Result[int64]) (unavailable []mxid.UserID) {
	f.counters.rechecked.Add(int64(len(loads)))
	for _, l := range loads {
		switch version := versions[l.user]; {
		case version.Err == nil:
			if f.finish(l, version.Value) {
				f.counters.missed.Add(1)
			}
		case fault.KindOf(version.Err) == fault.Unavailable:
			unavailable = append(unavailable, l.user)
		default: // unreadable rules: the next sync returns the error
			f.RulesForgotten(l.user)
		}
	}
	return unavailable
}

func (f *Feed) checkAgain(users []mxid.UserID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, user := range users {
		f.toCheck[user] = struct{}{}
	}
	signal(f.wake)
}
