package module

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// pusherFeed passes changes of pushers on to the listeners and the cache. It learns of
// all changes from the watch, also of changes by this host. It watches if there are
// listeners, or from the first call of [Feed.Pushers].
type pusherFeed struct {
	store  PusherWatcher // nil if the store is none
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

func (f *Feed) listenToPushers(store PusherStore, listeners []PusherListener) error {
	p := &f.pushers
	p.wanted = make(chan struct{})
	p.cache.maxAge, p.cache.users.Limit = f.cfg.Recheck, f.cfg.MaxPusherBytes
	p.store, _ = store.(PusherWatcher)
	if len(listeners) == 0 {
		return nil
	}
	if p.store == nil {
		return fmt.Errorf("module: a PusherListener needs a PusherStore that is a PusherWatcher, and %T is none", store)
	}
	p.want()
	for _, listener := range listeners {
		p.queues = append(p.queues, f.newPusherQueue(listener))
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
	select {
	case <-ctx.Done():
		return
	case <-p.wanted:
	}
	f.watchRepeatedly(ctx, func() (watched bool, err error) {
		err = fmt.Errorf("module: watch pushers: %w", p.store.Watch(ctx, p.begin, f.pushersChanged))
		return p.cache.setWatching(false), err
	})
}

func (p *pusherFeed) begin() {
	p.cache.setWatching(true)
	for _, queue := range p.queues {
		queue.miss()
	}
}

func (f *Feed) pushersChanged(c PusherChange) {
	f.counters.received.Add(1)
	f.pushers.cache.drop(c.User)
	if c.Repeated {
		return
	}
	for _, queue := range f.pushers.queues {
		queue.put(Change{User: c.User})
	}
}

// ownPushers drops the cached pushers of a user before a change by this host returns, so
// that the host reads its own changes. After an error the change may have been made.
type ownPushers struct {
	PusherStore
	cache *pusherCache
}

func (s ownPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	defer s.cache.drop(user)
	return s.PusherStore.Update(ctx, user, edit)
}

func (s ownPushers) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	defer s.cache.drop(user)
	return s.PusherStore.UpdatePusher(ctx, user, key, edit)
}

func (s ownPushers) Delete(ctx context.Context, user mxid.UserID) error {
	defer s.cache.drop(user)
	return s.PusherStore.Delete(ctx, user)
}

// Cached implements cachingStore.
func (s ownPushers) Cached(user mxid.UserID) (pusher.List, bool) {
	return cachedPushers(s.PusherStore, user)
}

func (f *Feed) queues() []*listenerQueue { return slices.Concat(f.listeners, f.pushers.queues) }
