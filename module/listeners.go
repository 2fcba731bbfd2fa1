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
	Watching  bool  // whether the store is being watched
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
		Watching:  f.isWatching(),
	}
	for _, queue := range f.listeners {
		s.Waiting += queue.length()
	}
	return s
}

// ListenerPanic is a panic of a [ChangeListener].
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
	listener ChangeListener
	feed     *Feed
	filled   chan struct{}

	mu     sync.Mutex
	order  []mxid.UserID
	latest map[mxid.UserID]Change
}

func newListenerQueue(listener ChangeListener, feed *Feed) *listenerQueue {
	return &listenerQueue{
		listener: listener, feed: feed,
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
			return false
		}
		q.order = append(q.order, c.User)
	}
	q.latest[c.User] = c
	signal(q.filled)
	return true
}

func (q *listenerQueue) take() (c Change, found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		q.order = nil
		return Change{}, false
	}
	c = q.latest[q.order[0]]
	q.order = q.order[1:]
	delete(q.latest, c.User)
	return c, true
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
			c, found := q.take()
			if !found {
				break
			}
			q.call(ctx, c)
		}
	}
}

func (q *listenerQueue) call(ctx context.Context, c Change) {
	defer func() {
		if p := recover(); p != nil {
			q.feed.counters.panics.Add(1)
			q.feed.observer.Report(observe.ListenerPanicked, &ListenerPanic{fmt.Sprintf("%T", q.listener), p, debug.Stack()})
		}
	}()
	q.feed.reached(c)
	q.listener.PushRulesChanged(ctx, c.User, c.Version)
}
