package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// setTimeouts takes never as the longest timeout that the module allows.
func setTimeouts(c *pushfx.Config, timeout time.Duration) {
	timeout = min(timeout, 30*time.Second)
	c.Handlers.RequestTimeout, c.Redis.OperationTimeout = timeout, timeout
}

// oddUsers are user ids that could break the hash tag of a key.
var oddUsers = []mxid.UserID{
	"@a:b", "@:b", "@a}:b", "@{a:b", "@{}:b", "@}{:b", "@a b:c", "@ü🦊:b", "@a\x00:b", "@a\n:b", "@a:b:8448", "@a:[::1]",
	mxid.UserID("@" + strings.Repeat("x", 252) + ":b"),
}

func TestAUsersKeysShareASlotAndNoTwoUsersShareAKey(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	cluster := redistest.Cluster(t, 3, 0)
	client := cluster.Client(t)
	rules, err := rulestore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pushers, err := pusherstore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]mxid.UserID{}
	for _, user := range oddUsers {
		before := allKeys(t, client)
		if _, err := rules.Update(t.Context(), user, createDefault(user)); err != nil {
			t.Fatalf("%q: %v", user, err)
		}
		if err := pushers.Update(t.Context(), user, setOne); err != nil {
			t.Fatalf("%q: %v", user, err)
		}
		slots := map[int64]bool{}
		for key := range allKeys(t, client) {
			if before[key] {
				continue
			}
			if other, found := seen[key]; found {
				t.Errorf("%q and %q share the key %q", user, other, key)
			}
			seen[key] = user
			slots[client.ClusterKeySlot(t.Context(), key).Val()] = true
		}
		if len(slots) != 1 {
			t.Errorf("the keys of %q are in %d slots", user, len(slots))
		}
	}
	if want := 2 * len(oddUsers); len(seen) != want {
		t.Errorf("got %d keys, want %d: two for each user", len(seen), want)
	}
}

func allKeys(t *testing.T, client *redis.ClusterClient) map[string]bool {
	t.Helper()
	found := make(chan []string, 3)
	err := client.ForEachMaster(t.Context(), func(ctx context.Context, master *redis.Client) error {
		keys, err := master.Keys(ctx, "*").Result()
		found <- keys
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	close(found)
	all := map[string]bool{}
	for keys := range found {
		for _, key := range keys {
			all[key] = true
		}
	}
	return all
}

func createDefault(user mxid.UserID) func(*pushrule.Ruleset, bool) error {
	return func(rules *pushrule.Ruleset, _ bool) error {
		*rules = pushrule.ServerDefault(user)
		return nil
	}
}

func setOne(list *pusher.List) error {
	list.Set(pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: "key"}, Kind: pusher.Email, Data: "{}"})
	return nil
}
