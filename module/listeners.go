package module

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// FeedStats counts changes since the start.
type FeedStats struct {
	Received  int64 // changes from the watch
	Rechecked int64 // versions compared with the store
	Missed    int64 // changes found by such a comparison
	Notified  int64 // calls of listeners, and changes that woke syncs
	Dropped   int64 // changes dropped because too many waited
	Panics    int64 // panics of listeners
	Waiting   int   // users whose change waits for a listener now
	Watching  bool  // whether the stores of all listeners are being watched
}

type feedCounters struct{ received, rechecked, missed, notified, dropped, panics atomic.Int64 }

// Stats returns the current counts.
func (f *Feed) Stats() FeedStats {
	s := FeedStats{
		Received:  f.counters.received.Load(),
		Rechecked: f.counters.rechecked.Load(),
		Missed:    f.counters.missed.Load(),
		Notified:  f.counters.notified.Load(),
		Dropped:   f.counters.dropped.Load(),
		Panics:    f.counters.panics.Load(),
		Watching:  f.isWatching() && (len(f.pushers.queues) == 0 || f.pushers.watching.Load()),
	}
	for _, queue := range f.queues() {
		s.Waiting += queue.length()
	}
	return s
}

// ListenerPanic is a panic of a [ChangeListener] or a [PusherListener].
type ListenerPanic struct {
	Listener string // its type
	Value    any
	Stack    []byte
}

// Error includes the stack.
func (p *ListenerPanic) Error() string {
	return fmt.Sprintf("module: the change listener %s panicked: %v\n%s", p.Listener, p.Value, p.Stack)
}

// listenerQueue holds the last change of each user that waits for a listener, in the
// order in which the users arrived.
type listenerQueue struct {
	listener string // its type
	notify   func(ctx context.Context, c Change)
	missed   func(ctx context.Context) // nil if a check finds dropped changes
	feed     *Feed
	filled   chan struct{}

	mu        sync.Mutex
	order     []mxid.UserID
	latest    map[mxid.UserID]Change
	hasMissed bool // missed must be called
}

func (f *Feed) newRuleQueue(listener ChangeListener) *listenerQueue {
	return f.newQueue(listener, func(ctx context.Context, c Change) {
		f.reached(c)
		listener.PushRulesChanged(ctx, c.User, c.Version)
	}, nil)
}

func (f *Feed) newPusherQueue(listener PusherListener) *listenerQueue {
	return f.newQueue(listener, func(ctx context.Context, c Change) {
		f.reached(c)
		listener.PushersChanged(ctx, c.User)
	}, listener.PushersMissed)
}

func (f *Feed) newQueue(listener any, notify func(context.Context, Change), missed func(context.Context)) *listenerQueue {
	return &listenerQueue{
		listener: fmt.Sprintf("%T", listener), notify: notify, missed: missed, feed: f,
		filled: make(chan struct{}, 1), latest: map[mxid.UserID]Change{},
	}
}

// put adds a change. If too many wait, it drops the change and returns false.
func (q *listenerQueue) put(c Change) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.latest[c.User]; !waits {
		if len(q.order) >= q.feed.cfg.MaxQueued {
			q.feed.counters.dropped.Add(1)
			q.hasMissed = q.missed != nil
			return false
		}
		q.order = append(q.order, c.User)
	}
	q.latest[c.User] = c
	signal(q.filled)
	return true
}

// miss has the listener told of missed changes.
func (q *listenerQueue) miss() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hasMissed = true
	signal(q.filled)
}

// take returns the next call of the listener. A call for missed changes replaces the
// calls for all waiting ones.
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
			q.feed.counters.panics.Add(1)
			q.feed.observer.Report(observe.ListenerPanicked, &ListenerPanic{q.listener, p, debug.Stack()})
		}
	}()
	call(ctx)
}
