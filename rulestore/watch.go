package rulestore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Watch calls changed for each published change; see [module.RuleStore]. All
// watches of a store share one connection of their own: each one more would cost
// Redis and the host as much for every change. Redis keeps no published message for
// later, so a lost connection ends them all.
func (s *Store) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	w := &watcher{watching, changed}
	shared := s.join(ctx, w)
	var err error
	select {
	case <-shared.ended:
		err = shared.err
	case <-ctx.Done():
		err = ctx.Err()
		s.leave(shared, w)
	}
	return fmt.Errorf("rulestore: watch: %w", err)
}

// watcher is a call of [Store.Watch].
type watcher struct {
	watching func()
	changed  func(module.Change)
}

// subscriptions is the subscription that the watches of a store share.
type subscriptions struct {
	mu      sync.Mutex
	current *subscription // nil if nobody watches
}

// subscription is a connection on which changes are heard, from the first watch to
// the last.
type subscription struct {
	watchers map[*watcher]struct{}
	begun    bool // it hears of every later change
	stop     context.CancelFunc

	ended chan struct{}
	err   error // why it has ended
}

// join adds a watcher to the subscription, which begins if there is none.
func (s *Store) join(ctx context.Context, w *watcher) *subscription {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	shared := s.watches.current
	if shared == nil {
		shared = &subscription{watchers: map[*watcher]struct{}{}, ended: make(chan struct{})}
		ctx, shared.stop = context.WithCancel(context.WithoutCancel(ctx))
		s.watches.current = shared
		go s.listen(ctx, shared)
	}
	shared.watchers[w] = struct{}{}
	if shared.begun {
		w.watching()
	}
	return shared
}

// leave returns when the watcher is called no more. The last one ends the
// subscription.
func (s *Store) leave(shared *subscription, w *watcher) {
	s.watches.mu.Lock()
	delete(shared.watchers, w)
	isLast := len(shared.watchers) == 0
	if isLast {
		s.watches.drop(shared)
	}
	s.watches.mu.Unlock()
	if isLast {
		shared.stop()
		<-shared.ended
	}
}

// drop has the next watch begin a subscription of its own.
func (w *subscriptions) drop(shared *subscription) {
	if w.current == shared {
		w.current = nil
	}
}

// listen calls the watchers of a subscription until it ends.
func (s *Store) listen(ctx context.Context, shared *subscription) {
	defer shared.stop()
	err := redisclient.Listen(ctx, s.client, s.channel, func() { s.begin(shared) }, func(message string) { s.tell(shared, message) })
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	s.watches.drop(shared)
	shared.err = err
	close(shared.ended)
}

// begin tells the watchers that the subscription has begun.
func (s *Store) begin(shared *subscription) {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	shared.begun = true
	for w := range shared.watchers {
		w.watching()
	}
}

// tell tells the watchers of a change.
func (s *Store) tell(shared *subscription, message string) {
	user, version, found := stored.ReadMessage(message)
	if !found {
		return
	}
	s.events.Heard(user, version)
	change := module.Change{User: user, Version: version, Made: s.madeAt(version)}
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	for w := range shared.watchers {
		w.changed(change)
	}
}

// madeAt returns when a change was made, by the clock of this host: the version
// is that time by the clock of Redis.
func (s *Store) madeAt(version int64) time.Time {
	return time.Now().Add(-s.now().Sub(time.UnixMicro(version)))
}
