package feed

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// FeedStats counts changes since the start.
type Stats struct {
	Received  int64 // changes from the watch
	Rechecked int64 // versions compared with the store
	Missed    int64 // changes found by such a comparison
	Notified  int64 // calls of listeners, and changes that woke syncs
	Dropped   int64 // changes dropped because too many waited
	Panics    int64 // panics of listeners
	Waiting   int   // users whose change waits for a listener now
	Watching  bool  // whether all stores with a listener or a cache are being watched
}

type feedCounters struct{ received, rechecked, missed, notified, dropped, panics atomic.Int64 }

// ListenerPanic is a panic of a [module.ChangeListener] or a [module.PusherListener].
type ListenerPanic struct {
	Listener string // its type
	Value    any
	Stack    []byte
}

// Error includes the stack.
func (p *ListenerPanic) Error() string {
	return fmt.Sprintf("feed: the change listener %s panicked: %v\n%s", p.Listener, p.Value, p.Stack)
}

// listenerQueue holds the last change of each user that waits for a listener, in the
// order in which the users arrived.
type listenerQueue struct {
	listener string // its type
	notify   func(ctx context.Context, c module.Change)
	missed   func(ctx context.Context) // nil if the feed's checks find dropped changes
	limit    int                       // of waiting users
	counters *feedCounters
	observer observe.Observer
	filled   chan struct{}

	mu        sync.Mutex
	order     []mxid.UserID
	latest    map[mxid.UserID]module.Change
	hasMissed bool // missed must be called
}

// put adds a change. If too many wait, it drops the change and returns false.
func (q *listenerQueue) put(c module.Change) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.latest[c.User]; !waits {
		if len(q.order) >= q.limit {
			q.counters.dropped.Add(1)
			q.hasMissed = q.missed != nil
			return false
		}
		q.order = append(q.order, c.User)
	}
	q.latest[c.User] = c
	signal(q.filled)
	return true
}

// miss makes the next call of the listener report missed changes.
func (q *listenerQueue) miss() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hasMissed = true
	signal(q.filled)
}

// take returns the next call of the listener. A call for missed changes replaces the
// calls for all waiting changes.
func (q *listenerQueue) take() (call func(context.Context), found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hasMissed {
		q.hasMissed, q.order = false, nil
		clear(q.latest)
		return q.missed, true
	}
	if len(q.order) == 0 {
		q.order = nil
		return nil, false
	}
	c := q.latest[q.order[0]]
	q.order = q.order[1:]
	delete(q.latest, c.User)
	return func(ctx context.Context) { q.notify(ctx, c) }, true
}

func (q *listenerQueue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.order)
}

func (q *listenerQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.filled:
		}
		for ctx.Err() == nil {
			call, found := q.take()
			if !found {
				break
			}
			q.recovered(ctx, call)
		}
	}
}

func (q *listenerQueue) recovered(ctx context.Context, call func(context.Context)) {
	defer func() {
		if p := recover(); p != nil {
			q.counters.panics.Add(1)
			q.observer.Report(observe.ListenerPanicked, &ListenerPanic{q.listener, p, debug.Stack()})
		}
	}()
	call(ctx)
}
