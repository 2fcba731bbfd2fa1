package feed

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// pusherFeed passes changes of pushers on to the listeners and the cache. It learns of
// all changes from the watch, also of changes by this host. It watches if there are
// listeners, or from the first call of [Feed.Pushers].
type pusherFeed struct {
	store  module.PusherWatcher // nil if the store is none
	queues []*listenerQueue
	cache  pusherCache

	wanting sync.Once
	wanted  chan struct{} // closed if the watch is wanted
}

func (p *pusherFeed) want() { p.wanting.Do(func() { close(p.wanted) }) }

// isDown reports whether the watch is wanted, but down.
func (p *pusherFeed) isDown() bool {
	select {
	case <-p.wanted:
		return p.store != nil && !p.cache.isWatching()
	default:
		return false
	}
}

func (f *Feed) listenToPushers(store module.PusherStore, listeners []module.PusherListener) error {
	p := &f.pushers
	p.wanted = make(chan struct{})
	p.cache.maxAge, p.cache.users.Limit = f.cfg.Recheck, f.cfg.MaxPusherBytes
	p.store, _ = store.(module.PusherWatcher)
	if len(listeners) == 0 {
		return nil
	}
	if p.store == nil {
		return fmt.Errorf("feed: a PusherListener needs a PusherStore that is a PusherWatcher, and %T is none", store)
	}
	p.want()
	for _, listener := range listeners {
		p.queues = append(p.queues, f.newPusherQueue(listener))
	}
	return nil
}

func (f *Feed) newPusherQueue(listener module.PusherListener) *listenerQueue {
	return f.newQueue(listener, func(ctx context.Context, c module.Change) {
		f.reached(c)
		listener.PushersChanged(ctx, c.User)
	}, listener.PushersMissed)
}

func (f *Feed) watchPushers(ctx context.Context) {
	p := &f.pushers
	select {
	case <-ctx.Done():
		return
	case <-p.wanted:
	}
	f.watchRepeatedly(ctx, func() (watched bool, err error) {
		err = fmt.Errorf("feed: watch pushers: %w", p.store.Watch(ctx, p.begin, f.pushersChanged))
		return p.cache.setWatching(false), err
	})
}

func (p *pusherFeed) begin() {
	p.cache.setWatching(true)
	for _, queue := range p.queues {
		queue.miss()
	}
}

func (f *Feed) pushersChanged(c module.PusherChange) {
	f.counters.received.Add(1)
	f.pushers.cache.drop(c.User)
	if c.Repeated {
		return
	}
	for _, queue := range f.pushers.queues {
		queue.put(module.Change{User: c.User})
	}
}

// PushersChanged drops the user's cached pushers. The services call it before a change by
// this host returns, so that the host reads its own changes.
func (f *Feed) PushersChanged(user mxid.UserID) { f.pushers.cache.drop(user) }

func (f *Feed) queues() []*listenerQueue { return slices.Concat(f.listeners, f.pushers.queues) }
