package feed

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// Stats counts changes since the start.
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

// Stats returns the current counts.
func (f *Feed) Stats() Stats {
	s := Stats{
		Received:  f.counters.received.Load(),
		Rechecked: f.counters.rechecked.Load(),
		Missed:    f.counters.missed.Load(),
		Notified:  f.counters.notified.Load(),
		Dropped:   f.counters.dropped.Load(),
		Panics:    f.counters.panics.Load(),
		Watching:  f.rules.isWatching() && !f.lacksPushers(),
	}
	for _, queue := range f.queues() {
		s.Waiting += queue.length()
	}
	return s
}

// lacksPushers reports whether the watch of pushers is wanted, but down.
func (f *Feed) lacksPushers() bool {
	select {
	case <-f.pushersWanted:
		return f.pusherStore != nil && !f.pushers.isWatching()
	default:
		return false
	}
}

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

// listenerQueue holds the users whose change waits for a listener, in the order in which
// they came. It is safe for concurrent use.
type listenerQueue struct {
	feed     *Feed
	listener string // its type
	changed  func(context.Context, mxid.UserID)
	missed   func(context.Context)
	filled   chan struct{}

	mu        sync.Mutex
	order     []mxid.UserID
	made      map[mxid.UserID]time.Time // of the last change, zero if unknown
	hasMissed bool                      // missed must be called
}

func (f *Feed) newQueue(listener any, changed func(context.Context, mxid.UserID), missed func(context.Context)) *listenerQueue {
	return &listenerQueue{
		feed: f, listener: fmt.Sprintf("%T", listener), changed: changed, missed: missed,
		filled: make(chan struct{}, 1), made: map[mxid.UserID]time.Time{},
	}
}

// put adds a change. If too many wait, the listener is told that it has missed changes.
func (q *listenerQueue) put(user mxid.UserID, made time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.made[user]; !waits {
		if len(q.order) >= q.feed.cfg.MaxQueued {
			q.feed.counters.dropped.Add(1)
			q.hasMissed = true
			return
		}
		q.order = append(q.order, user)
	}
	q.made[user] = made
	signal(q.filled)
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
		clear(q.made)
		return q.missed, true
	}
	if len(q.order) == 0 {
		q.order = nil
		return nil, false
	}
	user := q.order[0]
	made := q.made[user]
	q.order = q.order[1:]
	delete(q.made, user)
	return func(ctx context.Context) {
		q.feed.reached(made)
		q.changed(ctx, user)
	}, true
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

func (f *Feed) queues() []*listenerQueue { return slices.Concat(f.ruleListeners, f.pusherListeners) }

// reached counts a change that reaches a listener or the user's waiting syncs, and
// reports its delay.
func (f *Feed) reached(made time.Time) {
	f.counters.notified.Add(1)
	if !made.IsZero() {
		f.observer.Took(observe.ChangeLag, observe.PushRules, time.Since(made), true)
	}
}
