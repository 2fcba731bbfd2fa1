package unread

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/unread/fold"
)

const (
	// fewOps is the number of operations up to which a list is not compacted.
	fewOps = 16

	// MaxOps is the number of operations above which the next append compacts a list.
	MaxOps = 64

	// stuckOps is far above the length of any readable list. A longer list is probably
	// unreadable, so the service rarely tries to compact it.
	stuckOps = 1024

	maxLoaded = 500 // lists that are in memory at once

	// idleTime is how long a room without notifications stays in a record, at least.
	idleTime = 7 * 24 * time.Hour
)

// isCompactedAt reports whether an append compacts a list that now has this length. The
// lists of a room's members grow together: without the random choice, the service would
// compact all of them after the same event.
func isCompactedAt(length int) bool {
	switch {
	case length <= fewOps:
		return false
	case length > MaxOps && length <= stuckOps:
		return true
	}
	return rand.IntN(fewOps) == 0
}

// compactUsers loads and compacts lists. It leaves unreadable lists alone. A failure
// loses nothing, and the list stays due.
func (s *Service) compactUsers(ctx context.Context, users []mxid.UserID) {
	for some := range slices.Chunk(users, maxLoaded) {
		lists := map[mxid.UserID][]string{}
		for user, loaded := range s.store.Load(ctx, some) {
			lists[user] = loaded.Value
		}
		s.compact(ctx, lists)
	}
}

// compact replaces each list of more than fewOps operations by its record.
func (s *Service) compact(ctx context.Context, lists map[mxid.UserID][]string) {
	var all []module.UnreadReplacement
	unreadable, shortened := 0, 0
	idle, redacted := s.before(max(idleTime, s.maxAge)), s.before(s.maxAge)
	for user, list := range lists {
		if countOps(list) <= fewOps {
			continue
		}
		record, err := fold.Fold(list)
		if err != nil {
			unreadable++
			continue
		}
		record.Expire(idle, redacted)
		all = append(all, module.UnreadReplacement{User: user, First: list, By: record.Text()})
		if record.IsShortened() {
			shortened++
		}
	}
	s.observer.Count(observe.UnreadUnreadable, "", unreadable)
	s.observer.Count(observe.UnreadShortened, "", shortened)
	if len(all) == 0 {
		return
	}
	compacted := 0
	for _, done := range s.store.Replace(ctx, all) {
		if done.Value {
			compacted++
		}
	}
	s.observer.Count(observe.UnreadCompacted, "", compacted)
}

// before returns the present less a duration, in milliseconds. The present is the earlier
// of two times, the stores' and the host's: a clock that is ahead for a minute must not
// expire anything.
func (s *Service) before(ago time.Duration) int64 {
	return min(s.now().UnixMilli(), time.Now().UnixMilli()) - ago.Milliseconds()
}

func countOps(list []string) int {
	if len(list) > 0 && fold.IsRecord(list[0]) {
		return len(list) - 1
	}
	return len(list)
}
