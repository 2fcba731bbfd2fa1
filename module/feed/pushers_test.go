package feed_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/storetest"
)

// pusherOf returns a pusher whose language identifies it.
func pusherOf(lang string) pusher.Pusher {
	return pusher.Pusher{Key: pusher.Key{AppID: "org.example.app", Pushkey: "key"}, Kind: pusher.HTTP, Lang: lang, Device: "TABLET",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`}
}

// pusherCalls is a listener that records its calls.
type pusherCalls struct {
	during func(ctx context.Context, user mxid.UserID)

	mu    sync.Mutex
	calls []string
}

func (c *pusherCalls) add(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
}

// take waits until nothing happens, and returns the calls since the last time.
func (c *pusherCalls) take() (calls string) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, c.calls = strings.Join(c.calls, " "), nil
	return calls
}

func (c *pusherCalls) PushersChanged(ctx context.Context, user mxid.UserID) {
	c.add(string(user))
	if c.during != nil {
		c.during(ctx, user)
	}
}

func (c *pusherCalls) PushersMissed(context.Context) { c.add("missed") }

// watchedPushers counts and cuts watches.
type watchedPushers struct {
	module.PusherStore
	memory  *storetest.Memory
	watches int
	deaf    bool // no change is reported

	mu  sync.Mutex
	cut context.CancelFunc
}

func (s *watchedPushers) cutNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != nil {
		s.cut()
	}
}

func (s *watchedPushers) Watch(ctx context.Context, watching func(), changed func(module.PusherChange)) error {
	s.mu.Lock()
	s.watches++
	ctx, s.cut = context.WithCancel(ctx)
	s.mu.Unlock()
	return s.PusherStore.(module.PusherWatcher).Watch(ctx, watching, func(c module.PusherChange) {
		if !s.deaf {
			changed(c)
		}
	})
}

type pusherFeedHost struct {
	*feed.Feed
	t       *testing.T
	store   *watchedPushers
	pushers module.PusherService
}

func newPusherFeed(t *testing.T, maxQueued int, listeners ...module.PusherListener) pusherFeedHost {
	t.Helper()
	memory := storetest.NewMemory()
	store := &watchedPushers{PusherStore: memory.Pushers(), memory: memory}
	cfg := feed.DefaultConfig()
	cfg.MaxQueued = maxQueued
	feed, err := feed.New(module.Stores{Rules: memory.Rules(), Pushers: store}, cfg, nil, feed.Listeners{Pushers: listeners})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		feed.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	synctest.Wait()
	return pusherFeedHost{Feed: feed, t: t, store: store}
}

// set sets a pusher of each user, and lets the listeners work.
func (h pusherFeedHost) set(lang string, users ...mxid.UserID) {
	h.t.Helper()
	for _, user := range users {
		err := h.store.Update(h.t.Context(), user, func(list *pusher.List) error {
			list.Set(pusherOf(lang))
			return nil
		})
		if err != nil {
			h.t.Fatal(err)
		}
		synctest.Wait()
	}
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got calls %q, want %q", what, got, want)
	}
}

func TestPusherListenersAreNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, other := &pusherCalls{}, &pusherCalls{}
		h := newPusherFeed(t, 10, calls, other)
		want(t, "at the start", calls.take(), "missed")
		h.set("en", alice, bob)
		want(t, "two changes", calls.take(), "@alice:example.org @bob:example.org")
		h.set("en", alice, bob)
		want(t, "repeated sets", calls.take(), "")
		want(t, "the other listener", other.take(), "missed @alice:example.org @bob:example.org")

		h.store.cut()
		synctest.Wait()
		if h.Stats().Watching {
			t.Error("the feed is said to watch")
		}
		h.set("de", alice)
		want(t, "while disconnected", calls.take(), "")
		time.Sleep(time.Second)
		want(t, "after that", calls.take(), "missed")
		h.set("fr", alice)
		want(t, "in the next watch", calls.take(), "@alice:example.org")
		if !h.Stats().Watching {
			t.Error("the feed is said not to watch")
		}
	})
}

// A slow listener gets one call for several changes of a user, and after too many
// changes one call for all.
func TestASlowPusherListenerHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		slow, quick := &pusherCalls{during: func(context.Context, mxid.UserID) { <-proceed }}, &pusherCalls{}
		h := newPusherFeed(t, 2, slow, quick)
		slow.take()
		quick.take()
		for _, lang := range []string{"a", "b", "c"} {
			h.set(lang, alice, bob)
		}
		want(t, "quick", quick.take(), strings.TrimSpace(strings.Repeat("@alice:example.org @bob:example.org ", 3)))
		proceed <- struct{}{}
		want(t, "slow", slow.take(), "@alice:example.org @bob:example.org")
		h.set("d", bob, carol, dave)
		if stats := h.Stats(); stats.Waiting != 2 || stats.Dropped != 2 {
			t.Errorf("%d changes wait, %d were dropped", stats.Waiting, stats.Dropped)
		}
		close(proceed)
		want(t, "slow, after too many", slow.take(), "missed")
		h.set("e", bob)
		want(t, "slow, after that", slow.take(), "@bob:example.org")
	})
}

func TestAPanicOfAPusherListenerIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &pusherCalls{}
		calls.during = func(_ context.Context, user mxid.UserID) {
			if user == alice {
				panic("a bug")
			}
		}
		h := newPusherFeed(t, 10, calls)
		calls.take()
		h.set("en", alice, bob)
		want(t, "after a panic", calls.take(), "@alice:example.org @bob:example.org")
		if panics := h.Stats().Panics; panics != 1 {
			t.Errorf("counted %d panics", panics)
		}
	})
}

func TestPushersAreWatchedOnlyForListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPusherFeed(t, 10)
		h.set("en", alice)
		if stats := h.Stats(); h.store.watches != 0 || stats.Received != 0 || !stats.Watching {
			t.Errorf("%d watches, %+v", h.store.watches, stats)
		}
	})
}

func TestAPusherListenerNeedsAStoreThatReportsChanges(t *testing.T) {
	t.Parallel()
	memory := storetest.NewMemory()
	stores := module.Stores{Rules: memory.Rules(), Pushers: struct{ module.PusherStore }{memory.Pushers()}}
	for _, test := range []struct {
		listeners []module.PusherListener
		refused   bool
	}{{nil, false}, {[]module.PusherListener{&pusherCalls{}}, true}} {
		feed, err := feed.New(stores, feed.DefaultConfig(), nil, feed.Listeners{Pushers: test.listeners})
		if (err != nil) != test.refused || (feed == nil) != test.refused {
			t.Errorf("got %v", err)
		}
	}
}
