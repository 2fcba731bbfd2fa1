package feed

import (
	"context"
	"sync"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

var _ module.SyncService = (*syncService)(nil)

type syncService struct {
	rules module.RuleService
	feed  *Feed
}

// Sync returns the calls for /sync. It reads through rules: the service's, or the host's
// wrapper of it.
func (f *Feed) Sync(rules module.RuleService) module.SyncService { return &syncService{rules, f} }

func (s *syncService) Since(ctx context.Context, user mxid.UserID, since int64) (module.SyncUpdate, error) {
	// The sync waits before the rules are read, so that no change is missed.
	waiting := s.feed.syncs.add(ctx, user, since)
	update := module.SyncUpdate{Token: since, Changed: waiting.changed}
	missing := s.feed.rules.get(lookup[userRules]{
		n:     1,
		user:  func(int) (mxid.UserID, bool) { return user, true },
		found: func(_ int, r userRules) bool { return since != 0 && r.version == since },
	})
	if len(missing) == 0 { // the sync has the current rules
		return update, nil
	}
	content, err := s.rules.Content(ctx, user)
	if err != nil {
		if fault.KindOf(err) == fault.Unavailable && ctx.Err() == nil {
			s.feed.syncs.fail(waiting)
		}
		return update, err
	}
	s.feed.keepRules(missing[0], userRules{version: content.Version})
	if content.Version != since {
		update.Content, update.New, update.Token = content, true, content.Version
	}
	return update, nil
}

// waitingSync is a sync that waits for a change, or that may do so.
type waitingSync struct {
	changed chan struct{}
	since   int64 // the version that the client has
	failed  bool  // the store did not answer
}

// waitingSyncs are the syncs of a host. It is safe for concurrent use.
type waitingSyncs struct {
	mu      sync.Mutex
	waiting map[mxid.UserID]map[*waitingSync]struct{}
	failed  chan struct{} // has a value when the store has failed a sync
}

// add adds a sync, until it wakes or ctx ends.
func (s *waitingSyncs) add(ctx context.Context, user mxid.UserID, since int64) *waitingSync {
	w := &waitingSync{changed: make(chan struct{}), since: since}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[user] == nil {
		s.waiting[user] = map[*waitingSync]struct{}{}
	}
	s.waiting[user][w] = struct{}{}
	context.AfterFunc(ctx, func() { s.leave(user, w) })
	return w
}

func (s *waitingSyncs) leave(user mxid.UserID, w *waitingSync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting[user], w)
	if len(s.waiting[user]) == 0 {
		delete(s.waiting, user)
	}
}

// wake wakes the user's syncs that have another version or have failed, and reports whether
// there were any.
func (s *waitingSyncs) wake(user mxid.UserID, version int64) (woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.waiting[user] {
		if w.since != version || w.failed {
			close(w.changed)
			delete(s.waiting[user], w)
			woken = true
		}
	}
	if len(s.waiting[user]) == 0 {
		delete(s.waiting, user)
	}
	return woken
}

// fail makes a sync wake when the store answers again.
func (s *waitingSyncs) fail(w *waitingSync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.failed = true
	signal(s.failed)
}

// addAll adds the users with waiting syncs.
func (s *waitingSyncs) addAll(users map[mxid.UserID]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for user := range s.waiting {
		users[user] = struct{}{}
	}
}

// addFailed adds the users with syncs that the store has failed.
func (s *waitingSyncs) addFailed(users map[mxid.UserID]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for user, waiting := range s.waiting {
		for w := range waiting {
			if w.failed {
				users[user] = struct{}{}
			}
		}
	}
}
