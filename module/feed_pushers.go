package module

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/mxid"
)

// pusherFeed passes changes of pushers on to the listeners. Without listeners it does
// nothing. It learns of all changes from the watch, also of changes by this host.
type pusherFeed struct {
	store    PusherWatcher
	queues   []*listenerQueue
	watching atomic.Bool
}

func (f *Feed) listenToPushers(store PusherStore, listeners []PusherListener) error {
	if len(listeners) == 0 {
		return nil
	}
	watcher, is := store.(PusherWatcher)
	if !is {
		return fmt.Errorf("module: a PusherListener needs a PusherStore that is a PusherWatcher, and %T is none", store)
	}
	f.pushers.store = watcher
	for _, listener := range listeners {
		f.pushers.queues = append(f.pushers.queues, f.newPusherQueue(listener))
	}
	return nil
}

func (f *Feed) newPusherQueue(listener PusherListener) *listenerQueue {
	return f.newQueue(listener, func(ctx context.Context, c Change) {
		f.reached(c)
		listener.PushersChanged(ctx, c.User)
	}, listener.PushersMissed)
}

func (f *Feed) watchPushers(ctx context.Context) {
	p := &f.pushers
	f.watchRepeatedly(ctx, func() (watched bool, err error) {
		err = fmt.Errorf("module: watch pushers: %w", p.store.Watch(ctx, p.begin, f.pushersChanged))
		return p.watching.Swap(false), err
	})
}

func (p *pusherFeed) begin() {
	p.watching.Store(true)
	for _, queue := range p.queues {
		queue.miss()
	}
}

func (f *Feed) pushersChanged(user mxid.UserID) {
	f.counters.received.Add(1)
	for _, queue := range f.pushers.queues {
		queue.put(Change{User: user})
	}
}

func (f *Feed) queues() []*listenerQueue { return slices.Concat(f.listeners, f.pushers.queues) }
