package feed_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/storetest"
)

// cachingHost is a host whose loads are recorded.
type cachingHost struct {
	pusherFeedHost
	host   module.HostService
	during func() // called in a load, after it has read

	loaded []mxid.UserID
}

// sessions reports all devices as logged in, except the ended ones.
type sessions map[module.Session]bool

func (s sessions) LoggedIn(_ context.Context, user mxid.UserID, device string) (bool, error) {
	return !s[module.Session{User: user, Device: device}], nil
}

// newCachingHost returns a host whose cache is in use.
func newCachingHost(t *testing.T, ended sessions) *cachingHost {
	t.Helper()
	h := &cachingHost{pusherFeedHost: newPusherFeed(t, 10)}
	services := service.New(
		module.Stores{Rules: storetest.NewMemory().Rules(), Pushers: h.store, Pushkeys: h.store.memory.Pushkeys()},
		h.Feed, service.Options{Policy: pusher.DefaultPolicy(), Accounts: ended},
	)
	h.pushers, h.host = services.Pushers(), services.Host(services.Rules())
	h.langs()
	synctest.Wait()
	return h
}

func (h *cachingHost) load(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	h.loaded = append(h.loaded, users...)
	all := h.host.Pushers(ctx, users)
	if during := h.during; during != nil {
		h.during = nil
		during()
	}
	return all
}

// langs returns the languages of the users' pushers, and the users that were loaded.
func (h *cachingHost) langs(users ...mxid.UserID) (langs, loaded string) {
	h.t.Helper()
	h.loaded = nil
	var all []string
	for _, result := range h.Pushers(h.t.Context(), users, h.load) {
		lang := "-"
		for _, p := range result.Value.All() {
			lang = p.Lang
		}
		if result.Err != nil {
			lang = "error"
		}
		all = append(all, lang)
	}
	return strings.Join(all, " "), fmt.Sprint(h.loaded)
}

func (h *cachingHost) want(when, langs string, loaded ...mxid.UserID) {
	h.t.Helper()
	users := []mxid.UserID{alice, bob}
	if gotLangs, gotLoaded := h.langs(users...); gotLangs != langs || gotLoaded != fmt.Sprint(loaded) {
		h.t.Errorf("%s: got %q and loaded %s, want %q and %s", when, gotLangs, gotLoaded, langs, fmt.Sprint(loaded))
	}
}

func (h *cachingHost) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func TestPushersAreLoadedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newCachingHost(t, nil)
		h.set("en", alice)
		h.want("the first time", "en -", alice, bob)
		h.want("the second time", "en -")
		if langs, loaded := h.langs(bob, alice, carol, alice); langs != "- en - en" || loaded != fmt.Sprint([]mxid.UserID{carol}) {
			t.Errorf("in another order: %q, loaded %s", langs, loaded)
		}
		h.set("de", alice)
		h.want("after a change by another host", "de -", alice)
		h.set("fr", bob)
		h.want("after a new pusher", "de fr", bob)
		h.want("after that", "de fr")
		h.must(h.store.Update(t.Context(), alice, func(list *pusher.List) error {
			p := pusherOf("de")
			p.SetAt = 5
			list.Set(p)
			return nil
		}))
		h.want("after a repeated set", "de fr", alice)
		h.must(h.store.Delete(t.Context(), bob))
		h.want("after a deletion", "de -", bob)
	})
}

// Each call of this host is followed by a read before the message of the change arrives.
func TestAHostReadsTheChangesOfItsOwnRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := sessions{}
		h := newCachingHost(t, ended)
		h.store.deaf = true
		set := func(user mxid.UserID, lang string, others pusher.Others) error {
			return h.pushers.Set(t.Context(), user, pusherOf(lang), others)
		}
		h.want("at first", "- -", alice, bob)
		h.must(set(alice, "en", pusher.KeepOthers))
		h.want("a new pusher", "en -", alice)
		h.must(set(alice, "de", pusher.KeepOthers))
		h.want("a replaced pusher", "de -", alice)
		h.must(set(bob, "fr", pusher.RemoveOthers))
		h.want("another user's pusher", "- fr", alice, bob)
		h.must(h.pushers.Delete(t.Context(), bob, pusherOf("").Key))
		h.want("a deleted pusher", "- -", bob)

		for name, remove := range map[string]func() error{
			"a logout":               func() error { return h.host.RemoveDevicePushers(t.Context(), alice, "TABLET") },
			"a password change":      func() error { return h.host.KeepOnlyDevicePushers(t.Context(), alice, "PHONE") },
			"a deactivation":         func() error { return h.host.ForgetUser(t.Context(), alice) },
			"a login without pusher": func() error { return h.host.RetainDevicePushers(t.Context(), alice, "PHONE") },
			"a rejected pusher": func() error {
				list, err := h.pushers.List(t.Context(), alice)
				p, _ := list.Pusher(pusherOf("").Key)
				return errors.Join(err, h.host.RemovePusher(t.Context(), alice, pusherOf("").Key, p.SetAt))
			},
		} {
			delete(ended, module.Session{User: alice, Device: "TABLET"})
			h.must(set(alice, "en", pusher.KeepOthers))
			h.want("before "+name, "en -", alice)
			ended[module.Session{User: alice, Device: "TABLET"}] = true
			h.must(remove())
			h.want(name, "- -", alice)
			list, err := h.pushers.List(t.Context(), alice)
			if h.must(err); list.Len() != 0 {
				t.Errorf("%s left a pusher", name)
			}
		}
		delete(ended, module.Session{User: alice, Device: "TABLET"})
		_, err := h.host.Import(t.Context(), alice, module.Import{Pushers: []pusher.Pusher{pusherOf("it")}}, module.StoreImport)
		h.must(err)
		h.want("an import", "it -", alice)
	})
}

// After the change, another load begins and ends before the first one ends.
func TestAChangeDuringALoadIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newCachingHost(t, nil)
		for name, change := range map[string]func(){
			"another host": func() { h.set("en", alice) },
			"this host":    func() { h.must(h.pushers.Set(t.Context(), alice, pusherOf("en"), pusher.KeepOthers)) },
		} {
			h.must(h.store.Delete(t.Context(), alice))
			h.langs(bob)
			h.during = change
			h.want("during a change by "+name, "- -", alice)
			h.want("after a change by "+name, "en -", alice)

			h.must(h.store.Delete(t.Context(), alice))
			h.during = func() {
				change()
				h.Pushers(t.Context(), []mxid.UserID{alice}, h.host.Pushers)
			}
			h.want("during a change by "+name+" and another load", "- -", alice)
			h.want("after that", "en -")
		}
	})
}

func TestNothingIsCachedWhileChangesAreNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newCachingHost(t, nil)
		h.set("en", alice)
		h.want("in the first watch", "en -", alice, bob)
		h.during = func() { h.store.cut(); synctest.Wait(); time.Sleep(time.Second) } // a new watch begins
		h.langs(alice, carol)
		if h.during = nil; h.store.watches != 2 {
			t.Fatalf("%d watches", h.store.watches)
		}
		h.want("in the second watch", "en -", alice, bob)
		h.want("the second time", "en -")

		h.store.cut()
		synctest.Wait()
		if h.Stats().Watching {
			t.Error("the feed is said to watch")
		}
		h.want("without a watch", "en -", alice, bob)
		h.want("without a watch, the second time", "en -", alice, bob)
		h.set("de", alice)
		h.during = func() { time.Sleep(time.Second) } // a watch begins
		h.want("at the begin of the third watch", "de -", alice, bob)
		h.set("fr", bob)
		h.want("in the third watch", "de fr", alice, bob)
		h.want("after that", "de fr")
	})
}

func TestPushersOfAStoreThatReportsNoChangesAreNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory()
		stores := module.Stores{Rules: memory.Rules(), Pushers: struct{ module.PusherStore }{memory.Pushers()}}
		feed, err := feed.New(stores, feed.DefaultConfig(), nil, feed.Listeners{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go feed.Run(ctx)
		loads := 0
		for range 3 {
			feed.Pushers(ctx, []mxid.UserID{alice}, func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
				loads++
				return map[mxid.UserID]module.Result[pusher.List]{alice: {}}
			})
			synctest.Wait()
		}
		if loads != 3 || !feed.Stats().Watching {
			t.Errorf("%d loads, %+v", loads, feed.Stats())
		}
	})
}

func TestErrorsAreNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newCachingHost(t, nil)
		h.want("at first", "- -", alice, bob)
		h.set("en", alice)
		h.store.memory.Before = func(string) error { return errors.New("gone") }
		h.want("without the store", "error -", alice)
		h.store.memory.Before = nil
		h.want("with the store", "en -", alice)
		h.want("after that", "en -")
		results := h.Pushers(t.Context(), []mxid.UserID{carol}, func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] { return nil })
		if results[0].Err == nil {
			t.Error("a missing result is no error")
		}
	})
}

// The host's call at a logout failed, or a message was lost.
func TestCachedPushersAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := sessions{}
		h := newCachingHost(t, ended)
		h.set("en", alice)
		h.want("at first", "en -", alice, bob)
		ended[module.Session{User: alice, Device: "TABLET"}] = true
		h.store.deaf = true
		h.set("fr", bob)
		time.Sleep(29 * time.Second)
		h.want("before 30 seconds", "en -")
		time.Sleep(time.Second)
		h.want("after 30 seconds", "- fr", alice, bob)
	})
}

func TestCachedPushersFitIntoTheirMemory(t *testing.T) {
	for _, test := range []struct{ pushers, users int }{{0, 20_000}, {1, 5000}, {3, 2000}} {
		t.Run(fmt.Sprint(test.pushers), func(t *testing.T) {
			const limit = 2 << 20
			cfg := feed.DefaultConfig()
			cfg.MaxBytes = 2 * limit
			feed, stop := runningFeed(t, cfg)
			defer stop()
			before, loads, n := heap(), 0, 0
			load := func(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
				loads++
				return map[mxid.UserID]module.Result[pusher.List]{users[0]: {Value: somePushers(n, test.pushers)}}
			}
			var fullest, cached int
			for n = range test.users {
				user := mxid.UserID(fmt.Sprintf("@a-user-with-a-name-%d:example.org", n))
				feed.Pushers(t.Context(), []mxid.UserID{user}, load)
				if n%(test.users/20) == 0 {
					fullest = max(fullest, heap()-before)
				}
			}
			loads = 0
			for n = range test.users {
				user := mxid.UserID(fmt.Sprintf("@a-user-with-a-name-%d:example.org", test.users-1-n))
				if feed.Pushers(t.Context(), []mxid.UserID{user}, load); loads > 0 {
					cached = n
					break
				}
			}
			t.Logf("at most %d bytes, %d users, %d bytes each", fullest, cached, fullest/max(cached, 1))
			if fullest > limit || fullest < limit/4 {
				t.Errorf("the cache took %d bytes, want at most %d", fullest, limit)
			}
		})
	}
}

// somePushers returns pushers with members of their own, as a store reads them.
func somePushers(n, pushers int) pusher.List {
	var list pusher.List
	for i := range pushers {
		own := func(text string) string { return fmt.Sprint(text, n, i) }
		list.Set(pusher.Pusher{
			Key: pusher.Key{AppID: own("org.example.app"), Pushkey: own(strings.Repeat("k", 160))}, Kind: pusher.HTTP,
			AppDisplayName: own("An app"), DeviceDisplayName: own("A phone"), Lang: own("en"), Device: own("DEVICEID"),
			Data:  own(`{"url":"https://push.example.org/_matrix/push/v1/notify","format":"event_id_only"}`),
			Extra: []pusher.Member{{Name: own("profile_tag"), Value: own(`"abcdef"`)}}, SetAt: 1700000000000000,
		})
	}
	return list
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// runningFeed returns a feed that watches pushers.
func runningFeed(t testing.TB, cfg feed.Config) (changes *feed.Feed, stop func()) {
	t.Helper()
	memory := storetest.NewMemory()
	stores := module.Stores{Rules: memory.Rules(), Pushers: memory.Pushers()}
	changes, err := feed.New(stores, cfg, nil, feed.Listeners{Pushers: []module.PusherListener{&pusherCalls{}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { changes.Run(ctx) })
	for !changes.Stats().Watching {
		time.Sleep(time.Millisecond)
	}
	return changes, func() { cancel(); running.Wait() }
}

// Readers never see pushers that are older than a change that has returned before the read
// began, while loads, changes by this and another host, and cuts of the watch overlap.
func TestCachedPushersAreNeverOlderThanAChangeOfThisHost(t *testing.T) {
	t.Parallel()
	memory := storetest.NewMemory()
	store := &watchedPushers{PusherStore: memory.Pushers(), memory: memory}
	feed, err := feed.New(module.Stores{Rules: memory.Rules(), Pushers: store}, feed.DefaultConfig(), nil, feed.Listeners{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running, writing sync.WaitGroup
	running.Go(func() { feed.Run(ctx) })
	services := service.New(module.Stores{Rules: memory.Rules(), Pushers: store, Pushkeys: memory.Pushkeys()}, feed, service.Options{Policy: pusher.DefaultPolicy()})
	host := services.Host(services.Rules())
	read := func() (lang string) {
		result := feed.Pushers(t.Context(), []mxid.UserID{alice}, host.Pushers)[0]
		for _, p := range result.Value.All() {
			lang = p.Lang
		}
		return lang
	}
	for range 2 {
		running.Go(func() {
			for ctx.Err() == nil {
				read()
			}
		})
	}
	running.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			store.cutNow()
		}
	})
	writing.Go(func() {
		for n := range 500 {
			lang := fmt.Sprint(n)
			if err := services.Pushers().Set(t.Context(), alice, pusherOf(lang), pusher.KeepOthers); err != nil {
				t.Error(err)
			}
			for range 2 {
				if got := read(); got != lang {
					t.Errorf("read %q after the host has set %q", got, lang)
				}
			}
		}
	})
	writing.Wait()
	cancel()
	running.Wait()
}

func BenchmarkCachedPushers(b *testing.B) {
	feed, stop := runningFeed(b, feed.DefaultConfig())
	defer stop()
	users, all := make([]mxid.UserID, 1000), map[mxid.UserID]module.Result[pusher.List]{}
	for n := range users {
		users[n] = mxid.UserID(fmt.Sprintf("@user%d:example.org", n))
		all[users[n]] = module.Result[pusher.List]{Value: somePushers(n, n%2)}
	}
	load := func(_ context.Context, missing []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] { return all }
	feed.Pushers(b.Context(), users, load)
	load = func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
		b.Fatal("missed")
		return nil
	}
	b.ReportAllocs()
	for b.Loop() {
		feed.Pushers(b.Context(), users, load)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(users)), "ns/user")
}
