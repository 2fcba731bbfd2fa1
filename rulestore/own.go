package rulestore

import (
	"context"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// own are the versions that this store is about to publish. It comes to know of
// them before its caller does, who would have to look at the event to find what
// it just wrote.
type own struct {
	mu       sync.Mutex
	versions map[ownVersion]struct{} // that were not heard yet
}

type ownVersion struct {
	user    mxid.UserID
	version int64
}

// maxOwn bounds what is remembered of changes that are never heard, as where
// nobody watches.
const maxOwn = 10_000

func newOwn() *own { return &own{versions: map[ownVersion]struct{}{}} }

func (o *own) add(user mxid.UserID, version int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.versions) >= maxOwn {
		clear(o.versions)
	}
	o.versions[ownVersion{user, version}] = struct{}{}
}

// take reports whether a version that was heard is this store's.
func (o *own) take(user mxid.UserID, version int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, found := o.versions[ownVersion{user, version}]
	delete(o.versions, ownVersion{user, version})
	return found
}

// headStart is what the caller has to tell of its own change before the watch
// does. The watch is for when the caller cannot.
const headStart = 50 * time.Millisecond

// late calls changed for each change when its head start is over.
type late struct {
	changed func(mxid.UserID, int64)
	queue   chan lateChange
}

type lateChange struct {
	user    mxid.UserID
	version int64
	due     time.Time
}

func newLate(changed func(mxid.UserID, int64)) *late {
	return &late{changed, make(chan lateChange, maxOwn)}
}

// put queues a change, which is due at once where too many are.
func (l *late) put(user mxid.UserID, version int64) {
	select {
	case l.queue <- lateChange{user, version, time.Now().Add(headStart)}:
	default:
		l.changed(user, version)
	}
}

// start starts to call. Stop returns when it has ended.
func (l *late) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { l.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// run calls until ctx ends.
func (l *late) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-l.queue:
			timer.Reset(time.Until(c.due))
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				l.changed(c.user, c.version)
			}
		}
	}
}
