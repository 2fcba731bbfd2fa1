package rulestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// patience is how long an event may take on a busy machine.
const patience = time.Minute

// eachRedis runs a test with a client that does not retry commands, and one that does.
func eachRedis(t *testing.T, run func(t *testing.T, client *redis.Client)) {
	t.Run("without retries", func(t *testing.T) {
		t.Parallel()
		_, _, client := newStore(t, rediscommit.DefaultConfig())
		run(t, client)
	})
	t.Run("with retries", func(t *testing.T) {
		t.Parallel()
		run(t, redistest.Single(t).Client(t))
	})
}

func storeOn(t *testing.T, client redis.UniversalClient, change func(*rediscommit.Config)) *Store {
	t.Helper()
	cfg := rediscommit.DefaultConfig()
	change(&cfg)
	store, err := New(client, cfg, rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func defaults(*rediscommit.Config) {}

type watch struct {
	t     *testing.T
	end   context.CancelFunc
	ended chan error

	mu       sync.Mutex
	received []string
}

func newWatch(t *testing.T, store *Store) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{t: t, end: cancel, ended: make(chan error, 1)}
	watching := make(chan struct{})
	go func() {
		w.ended <- store.Watch(ctx, func() { close(watching) }, func(c module.Change) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.received = append(w.received, changeText(c.User, c.Version))
		})
	}()
	t.Cleanup(cancel)
	select {
	case <-watching:
	case err := <-w.ended:
		t.Fatalf("the watch ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the watch does not start")
	}
	return w
}

func changeText(user mxid.UserID, version int64) string { return fmt.Sprint(version, " ", user) }

func (w *watch) want(want ...string) {
	w.t.Helper()
	var got []string
	for deadline := time.Now().Add(patience); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		w.mu.Lock()
		got = slices.Clone(w.received)
		w.mu.Unlock()
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("received %q\nwant %q", got, want)
	}
}

func (w *watch) wantEnd(within time.Duration) {
	w.t.Helper()
	began := time.Now()
	select {
	case err := <-w.ended:
		if err == nil || !strings.Contains(err.Error(), "rulestore") {
			w.t.Errorf("the watch ended with error %v", err)
		}
	case <-time.After(within):
		w.t.Errorf("the watch has not ended after %v", time.Since(began))
	}
}

func mustUpdate(t *testing.T, store *Store, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) int64 {
	t.Helper()
	content, err := store.Update(t.Context(), user, edit)
	if err != nil {
		t.Fatal(err)
	}
	return content.Version
}

func unchanged(*pushrule.Ruleset, bool) error { return nil }

func TestWatchReceivesEachChangeOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, client *redis.Client) {
		store := storeOn(t, client, defaults)
		w := newWatch(t, storeOn(t, client, defaults))
		var want []string
		changes := func(user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) {
			t.Helper()
			want = append(want, changeText(user, mustUpdate(t, store, user, edit)))
		}
		changes(alice, unchanged) // creates the event
		changes(alice, put("a"))
		mustUpdate(t, store, alice, unchanged)
		mustUpdate(t, store, alice, put("a"))
		for _, refused := range []func(*pushrule.Ruleset, bool) error{
			func(*pushrule.Ruleset, bool) error { return errors.New("no") }, remove("b"),
		} {
			if _, err := store.Update(t.Context(), alice, refused); err == nil {
				t.Error("an edit was not refused")
			}
		}
		for _, user := range []mxid.UserID{"@a b:c", "@}{:b", "@ü🦊:b", "@a\n:b", "@a\x00:b"} {
			changes(user, put("a"))
		}
		if err := store.Delete(t.Context(), alice); err != nil {
			t.Error(err)
		}
		changes(alice, put("a"))
		changes(alice, remove("a"))
		w.want(want...)
	})
}

func TestEndedWatchLeavesNoConnection(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, client *redis.Client) {
		store := storeOn(t, client, defaults)
		first, second := newWatch(t, store), newWatch(t, store)
		made := changeText(alice, mustUpdate(t, store, alice, put("a")))
		first.want(made)
		second.want(made)
		first.end()
		first.wantEnd(patience)
		second.want(made, changeText(alice, mustUpdate(t, store, alice, put("b"))))
		first.want(made) // no change after its end
		second.end()
		second.wantEnd(patience)
		channel := stored.Keys{}.Channel()
		left := int64(-1)
		for deadline := time.Now().Add(patience); left != 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			left = client.PubSubNumSub(t.Context(), channel).Val()[channel]
		}
		if left != 0 {
			t.Errorf("%d subscribers are left", left)
		}
	})
}

// Without a watch, a read or change would first ask about the cached event.
func TestWatchDropsOutdatedEventsFromTheCache(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	for watches, want := range map[bool]string{
		true:  "get, get evalsha",
		false: "getrange get, evalsha get evalsha",
	} {
		client := server.Client(t)
		store, other := storeOn(t, client, defaults), storeOn(t, server.Client(t), defaults)
		client.Del(t.Context(), aliceKey)
		mustUpdate(t, store, alice, put("a"))
		trips := redistest.RecordTrips(client)
		sent := func() string { return strings.Join(trips.Take(), " ") }
		var w *watch
		if watches {
			w = newWatch(t, store)
		}
		var received []string
		change := func(id string) {
			t.Helper()
			received = append(received, changeText(alice, mustUpdate(t, other, alice, put(id))))
			if watches {
				w.want(received...)
			}
		}
		sent()
		change("b")
		ids(t, store)
		got := sent()
		change("c")
		mustUpdate(t, store, alice, put("d"))
		if got += ", " + sent(); got != want {
			t.Errorf("watches %t: sent %q, want %q", watches, got, want)
		}
	}
}

func TestConfirmingWriteIsNotPublished(t *testing.T) {
	t.Parallel()
	servers := redistest.Replicated(t, 1, "--repl-diskless-sync", "no")
	client := servers.Master().Client(t)
	subscription := client.Subscribe(t.Context(), stored.Keys{}.Channel())
	t.Cleanup(func() { subscription.Close() })
	if _, err := subscription.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	store := storeOn(t, client, func(c *rediscommit.Config) {
		c.Durability = rediscommit.Durability{Replicas: 1, Timeout: 2 * time.Second}
	})
	version := mustUpdate(t, store, alice, put("a"))
	for range 3 {
		if got := mustUpdate(t, store, alice, put("a")); got != version {
			t.Errorf("got version %d, want %d", got, version)
		}
	}
	for _, want := range []string{changeText(alice, version), changeText(alice, mustUpdate(t, store, alice, put("b")))} {
		message, err := subscription.ReceiveTimeout(t.Context(), patience)
		if got, isMessage := message.(*redis.Message); !isMessage || got.Payload != want {
			t.Errorf("published was %v, error %v, want %q", message, err, want)
		}
	}
}

func TestHostWithoutTheRightToPublishCanChangeRules(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]any{
		"no PUBLISH": {"allchannels", "+@all", "-publish"},
		"no channel": {"resetchannels", "+@all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Single(t)
			admin := server.Client(t)
			account := append([]any{"ACL", "SETUSER", "host", "reset", "on", ">secret", "~*"}, rules...)
			if err := admin.Do(t.Context(), account...).Err(); err != nil {
				t.Fatal(err)
			}
			client := redis.NewClient(&redis.Options{
				Addr: server.Addr(), Username: "host", Password: "secret", ContextTimeoutEnabled: true,
			})
			t.Cleanup(func() { client.Close() })
			w := newWatch(t, storeOn(t, admin, defaults))
			if err := client.Publish(t.Context(), stored.Keys{}.Channel(), "1 "+string(alice)).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
				t.Fatalf("publishing gave error %v", err)
			}
			store := storeOn(t, client, defaults)
			mustUpdate(t, store, alice, put("a"))
			mustUpdate(t, store, alice, put("b"))
			if got := ids(t, store); got != "b a" {
				t.Errorf("got rules %q", got)
			}
			done, err := client.Eval(t.Context(), swapScript, []string{"x"}, "new", stored.Keys{}.Channel(), "1 @bob:b").Bool()
			if !done || err != nil {
				t.Errorf("the script replied %t, %v", done, err)
			}
			w.want(changeText(alice, mustUpdate(t, storeOn(t, admin, defaults), alice, put("c"))))
		})
	}
}

func TestWatchWithoutTheRightToSubscribeFails(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	store := storeOn(t, server.Client(t), defaults)
	err := store.Watch(t.Context(), func() { t.Error("the watch has started") }, nil)
	if !redis.HasErrorPrefix(errors.Unwrap(err), "NOPERM") {
		t.Errorf("got error %v", err)
	}
}

// beforePing is before a watch asks a silent connection whether it still works.
const beforePing = 3 * time.Second

func TestWatchEndsWhenItMayMissChanges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		strike func(*redistest.Server, *watch)
		within time.Duration
	}{
		"a stopped server":    {func(s *redistest.Server, _ *watch) { s.Stop() }, beforePing},
		"a silent server":     {func(s *redistest.Server, _ *watch) { s.Pause() }, patience},
		"a cancelled context": {func(_ *redistest.Server, w *watch) { w.end() }, beforePing},
		"a killed connection": {killSubscriptions, beforePing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Single(t)
			store := storeOn(t, server.Client(t), defaults)
			w := newWatch(t, store)
			test.strike(server, w)
			w.wantEnd(test.within)
		})
	}
}

func killSubscriptions(s *redistest.Server, w *watch) {
	if err := s.Client(w.t).Do(w.t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
		w.t.Error(err)
	}
}

func TestQuietWatchContinues(t *testing.T) {
	t.Parallel()
	store := storeOn(t, redistest.Single(t).Client(t), defaults)
	w := newWatch(t, store)
	time.Sleep(2*beforePing + time.Second) // the connection is pinged twice
	w.want(changeText(alice, mustUpdate(t, store, alice, put("a"))))
}

func TestWatchIgnoresForeignMessages(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, client *redis.Client) {
		w := newWatch(t, storeOn(t, client, defaults))
		for _, message := range []string{
			"", " ", "1", "1 ", " @alice:example.org", "x @alice:example.org", "0 @alice:example.org",
			"-1 @alice:example.org", "1.5 @alice:example.org", "99999999999999999999 @alice:example.org",
			"1 alice", "1  @alice:example.org", "1\t@alice:example.org", "1 @" + strings.Repeat("x", 300) + ":b",
			"@alice:example.org 1", "\x00", strings.Repeat("9", 1<<16),
		} {
			if err := client.Publish(t.Context(), stored.Keys{}.Channel(), message).Err(); err != nil {
				t.Fatal(err)
			}
		}
		w.want(changeText(alice, mustUpdate(t, storeOn(t, client, defaults), alice, put("a"))))
	})
}

func TestWatchIgnoresOtherPrefixes(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, client *redis.Client) {
		var stores []*Store
		var watches []*watch
		for _, prefix := range []string{"", "hs1:", "hs2:"} {
			store := storeOn(t, client, func(c *rediscommit.Config) { c.KeyPrefix = prefix })
			stores, watches = append(stores, store), append(watches, newWatch(t, store))
		}
		for n, store := range stores {
			first := changeText(alice, mustUpdate(t, store, alice, put("a")))
			watches[n].want(first, changeText(alice, mustUpdate(t, store, alice, put("b"))))
		}
	})
}

// Hosts compute a different version for each text without a revision. The module never
// writes such a version.
func TestForeignTextsHaveUniqueVersions(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, client *redis.Client) {
		hosts := []*Store{storeOn(t, client, defaults), storeOn(t, client, defaults)}
		w := newWatch(t, hosts[0])
		seen := map[int64]string{}
		for _, text := range []string{
			`{"type":"m.push_rules","content":{"global":{}}}`,
			`{"type":"m.push_rules","content":{"global":{}}} `,
			`{"type":"m.push_rules","content":{"global":{"room":[]}}}`,
			`{"type":"m.push_rules","content":{"global":{}},"revision":"x"}`,
			`{"content":{"global":{}},"revision":{"version":-5,"writers":{}}}`,
			`{"content":{"global":{}},"revision":{"version":0,"changes":0,"writers":{}}}`,
			`{"content":{"global":{"x":"` + strings.Repeat("x", 2*stored.RevisionTail) + `"}}}`,
			`{"content":{"global":{"x":"` + strings.Repeat("x", 2*stored.RevisionTail+1) + `"}}}`,
		} {
			if err := client.Set(t.Context(), aliceKey, text, 0).Err(); err != nil {
				t.Fatal(err)
			}
			var version int64
			for _, host := range hosts {
				version = wantOneVersion(t, host)
				if other, found := seen[version]; found && other != text {
					t.Errorf("%.99s\nand %.99s have version %d", text, other, version)
				}
				seen[version] = text
			}
			if got := mustUpdate(t, hosts[1], alice, unchanged); got != version {
				t.Errorf("%.99s: an update without a change returns version %d, want %d", text, got, version)
			}
		}
		after := mustUpdate(t, hosts[1], alice, put("a"))
		if got := wantOneVersion(t, hosts[0]); got != after || seen[after] != "" || after >= 1<<62 {
			t.Errorf("after a change, the version is %d, but the change returned %d", got, after)
		}
		w.want(changeText(alice, after))
	})
}

func wantOneVersion(t *testing.T, store *Store) int64 {
	t.Helper()
	loaded, err := store.Load(t.Context(), alice)
	versions := store.Versions(t.Context(), []mxid.UserID{alice})[alice]
	if err != nil || versions.Err != nil || versions.Value != loaded.Version || loaded.Version <= 0 {
		t.Errorf("loaded is version %d, error %v; Versions gives %d, error %v", loaded.Version, err, versions.Value, versions.Err)
	}
	return loaded.Version
}
