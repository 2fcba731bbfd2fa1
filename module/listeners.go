package module

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// ChangeStats counts since the start what happened to changes.
type ChangeStats struct {
	Hints     int64 // heard from the store
	Rechecked int64 // users whose version was compared with the store's
	Delivered int64 // calls of listeners
	Dropped   int64 // changes that were not told, since too many waited
	Panics    int64 // of listeners
	Waiting   int   // users whose change waits for a listener, now
	Watching  bool  // whether the store tells of changes, now
}

type changeCounters struct{ hints, rechecked, delivered, dropped, panics atomic.Int64 }

// Stats returns the counts.
func (c *Changes) Stats() ChangeStats {
	s := ChangeStats{
		Hints:     c.counters.hints.Load(),
		Rechecked: c.counters.rechecked.Load(),
		Delivered: c.counters.delivered.Load(),
		Dropped:   c.counters.dropped.Load(),
		Panics:    c.counters.panics.Load(),
		Watching:  c.isWatching(),
	}
	for _, queue := range c.listeners {
		s.Waiting += queue.length()
	}
	return s
}

// listenerQueue holds the changes that a listener has not heard of yet: the
// last of each user, in the order in which the users came.
type listenerQueue struct {
	listener ChangeListener
	changes  *Changes
	filled   chan struct{}

	mu     sync.Mutex
	order  []mxid.UserID
	latest map[mxid.UserID]Content
}

func newListenerQueue(listener ChangeListener, changes *Changes) *listenerQueue {
	return &listenerQueue{
		listener: listener, changes: changes,
		filled: make(chan struct{}, 1), latest: map[mxid.UserID]Content{},
	}
}

// put adds a change, or drops it where too many wait, and then returns false.
func (q *listenerQueue) put(user mxid.UserID, content Content) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.latest[user]; !waits {
		if len(q.order) >= q.changes.cfg.MaxQueued {
			q.changes.counters.dropped.Add(1)
			return false
		}
		q.order = append(q.order, user)
	}
	q.latest[user] = content
	notify(q.filled)
	return true
}

func (q *listenerQueue) take() (user mxid.UserID, content Content, found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		q.order = nil
		return "", Content{}, false
	}
	user = q.order[0]
	q.order = q.order[1:]
	content = q.latest[user]
	delete(q.latest, user)
	return user, content, true
}

func (q *listenerQueue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.order)
}

// run calls the listener until ctx ends.
func (q *listenerQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.filled:
		}
		for ctx.Err() == nil {
			user, content, found := q.take()
			if !found {
				break
			}
			q.call(ctx, user, content)
		}
	}
}

func (q *listenerQueue) call(ctx context.Context, user mxid.UserID, content Content) {
	defer func() {
		if p := recover(); p != nil {
			q.changes.counters.panics.Add(1)
			q.changes.cfg.Report(fmt.Errorf("module: the change listener %T panicked: %v\n%s", q.listener, p, debug.Stack()))
		}
	}()
	q.changes.counters.delivered.Add(1)
	lag := time.Since(time.UnixMicro(content.Version))
	q.changes.cfg.Observer.Took(observe.ChangeLag, observe.PushRules, lag, true)
	q.listener.PushRulesChanged(ctx, user, content)
}
