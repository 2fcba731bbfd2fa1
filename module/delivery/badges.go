package delivery

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/retry"
)

// badges are the counts that pushers were sent last, as far as they are
// remembered: at least those of the last rememberedBadges pushers.
type badges struct{ young, old map[pusherID]module.Counts }

const rememberedBadges = 50_000

func newBadges() badges { return badges{young: map[pusherID]module.Counts{}} }

// shows reports whether a pusher was sent the same counts last.
func (b *badges) shows(id pusherID, counts module.Counts) bool {
	last, found := b.young[id]
	if !found {
		last, found = b.old[id]
	}
	return found && last == counts
}

func (b *badges) sent(id pusherID, counts module.Counts) {
	if len(b.young) >= rememberedBadges {
		b.old, b.young = b.young, map[pusherID]module.Counts{}
	}
	b.young[id] = counts
}

// badgeUpdates collects the users whose counts are to be sent alone.
type badgeUpdates struct {
	mu    sync.Mutex
	users map[mxid.UserID]struct{}
	wake  chan struct{} // has a value when there are some
}

// maxBadgeUpdates is how many users' updates wait; those of others are lost.
const maxBadgeUpdates = 100_000

func newBadgeUpdates() *badgeUpdates {
	return &badgeUpdates{users: map[mxid.UserID]struct{}{}, wake: make(chan struct{}, 1)}
}

func (b *badgeUpdates) add(users []mxid.UserID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, user := range users {
		if len(b.users) < maxBadgeUpdates {
			b.users[user] = struct{}{}
		}
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *badgeUpdates) takeAll() []mxid.UserID {
	b.mu.Lock()
	defer b.mu.Unlock()
	users := slices.Collect(maps.Keys(b.users))
	clear(b.users)
	return users
}

// run hands the users over, some time after the first of them has come, until ctx
// ends.
func (b *badgeUpdates) run(ctx context.Context, delay time.Duration, handOver func(context.Context, []mxid.UserID, string) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		if retry.Sleep(ctx, delay) != nil {
			return
		}
		b.handOver(ctx, b.takeAll(), handOver)
	}
}

func (b *badgeUpdates) handOver(ctx context.Context, users []mxid.UserID, handOver func(context.Context, []mxid.UserID, string) error) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	if len(users) > 0 && handOver(ctx, users, rand.Text()) != nil {
		b.add(users) // again, with what comes meanwhile
	}
}
