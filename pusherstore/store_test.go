package pusherstore

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	alice    mxid.UserID = "@alice:example.org"
	aliceKey string      = "pushers:{@alice:example.org}"
)

func newStore(t *testing.T) (*Store, *redistest.Server, *redis.Client) {
	t.Helper()
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	store, err := New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return store, server, client
}

func aPusher(pushkey string) pusher.Pusher {
	return pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.HTTP, Lang: "en", Device: "DEV",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`}
}

func set(pushkey string) func(*pusher.List) error {
	return func(list *pusher.List) error {
		list.Set(aPusher(pushkey))
		return nil
	}
}

// toggle returns an edit that deletes a pusher if there is one, and sets it otherwise.
func toggle(pushkey string) func(*pusher.List) error {
	return func(list *pusher.List) error {
		if !list.Delete(aPusher(pushkey).Key) {
			list.Set(aPusher(pushkey))
		}
		return nil
	}
}

func pushkeys(t *testing.T, s *Store) string {
	t.Helper()
	list, err := s.Load(t.Context(), alice)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, p := range list.All() {
		keys = append(keys, p.Pushkey)
	}
	return strings.Join(keys, " ")
}

func TestSwapScriptChangesOnlyTheExpectedHash(t *testing.T) {
	t.Parallel()
	_, _, client := newStore(t)
	subscription := client.Subscribe(t.Context(), "changes")
	defer subscription.Close()
	if _, err := subscription.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	messages := 0
	for i, step := range []struct {
		args   []any
		done   bool
		stored string
	}{
		{[]any{60, 1, 1, "a", "1", 0, "b", "2"}, false, ""},
		{[]any{60, 0, 0, 0, "a", "1", "c", "3"}, true, "a=1 c=3"},
		{[]any{60, 0, 0, 0, "a", "1"}, false, "a=1 c=3"},
		{[]any{60, 1, 1, "a", "1", 0, "b", "2"}, false, "a=1 c=3"},
		{[]any{60, 2, 2, "a", "1", "b", "3", 0, "b", "2"}, false, "a=1 c=3"},
		{[]any{60, 2, 2, "a", "1", "c", "4", 0, "b", "2"}, false, "a=1 c=3"},
		{[]any{60, 2, 2, "a", "1", "c", "3", 1, "a", "b", "\x00\xff", "c", ""}, true, "b=\x00\xff c="},
		{[]any{60, 2, 2, "a", "1", "c", "3", 1, "a", "b", "\x00\xff", "c", ""}, false, "b=\x00\xff c="},
		{[]any{60, 2, 1, "c", "", 0, "c", "4"}, true, "b=\x00\xff c=4"},
		{[]any{60, 2, 1, "c", "4", 0, "c", ""}, true, "b=\x00\xff c="},
		{[]any{60, 2, 2, "b", "\x00\xff", "c", "", 2, "b", "x", "c", ""}, true, "c="},
	} {
		done, err := client.Eval(t.Context(), swapScript, []string{aliceKey}, append([]any{"changes", "made"}, step.args...)...).Bool()
		if err != nil || done != step.done {
			t.Errorf("step %d: done %t, error %v", i, done, err)
		}
		if done {
			messages++
		}
		var stored []string
		fields := client.HKeys(t.Context(), aliceKey).Val()
		for _, field := range fields {
			stored = append(stored, field+"="+client.HGet(t.Context(), aliceKey, field).Val())
		}
		slices.Sort(stored)
		if got := strings.Join(stored, " "); got != step.stored {
			t.Errorf("step %d: stored is %q, want %q", i, got, step.stored)
		}
	}
	client.Publish(t.Context(), "changes", "the end")
	for ; ; messages-- {
		message, err := subscription.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if message.Payload == "the end" {
			break
		}
	}
	if messages != 0 {
		t.Errorf("%d messages too few about changes", messages)
	}
}

func TestHashWithoutPushersExpires(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t)
	for _, want := range []time.Duration{0, emptyExpiry, 0} {
		if err := store.Update(t.Context(), alice, toggle("a")); err != nil {
			t.Fatal(err)
		}
		if got := client.TTL(t.Context(), aliceKey).Val(); !lives(got, want) {
			t.Errorf("the hash with pushers %q expires in %v, want %v", pushkeys(t, store), got, want)
		}
	}
}

// lives reports whether a time to live was just set to want, 0 for none.
func lives(got, want time.Duration) bool {
	return want == 0 && got < 0 || got <= want && want-got < want/10
}
