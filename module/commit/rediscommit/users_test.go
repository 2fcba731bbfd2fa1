package rediscommit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

func someUsers(n int) []mxid.UserID {
	users := make([]mxid.UserID, n)
	for i := range users {
		users[i] = mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
	}
	return users
}

func plant(t *testing.T, store userTexts, users []mxid.UserID) {
	t.Helper()
	for _, user := range users {
		if err := store.Update(t.Context(), user, to(string(user)[:6])); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoadManyTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		users int
		trips []int
	}{{0, nil}, {1, []int{1}}, {500, []int{500}}, {501, []int{500, 1}}, {1234, []int{500, 500, 234}}} {
		t.Run(fmt.Sprint(test.users), func(t *testing.T) {
			t.Parallel()
			_, client := single(t)
			store, users := textStore(t, client, defaults), someUsers(test.users)
			plant(t, store, users[:len(users)/2])
			trips := redistest.RecordTrips(client)
			loaded := store.LoadMany(t.Context(), slices.Concat(users, users)) // each user twice
			var sizes []int
			for _, trip := range trips.Take() {
				sizes = append(sizes, strings.Count(trip, "get"))
			}
			if len(loaded) != len(users) || !slices.Equal(sizes, test.trips) {
				t.Errorf("got %d results after trips of %v, want %d after %v", len(loaded), sizes, len(users), test.trips)
			}
			for n, user := range users {
				want, planted := "", n < len(users)/2
				if planted {
					want = string(user)[:6]
				}
				if got := loaded[user]; got.Err != nil || got.Value.Value != want || (got.Value.Revision.Version != 0) != planted {
					t.Fatalf("%s: got %+v, want %q", user, got, want)
				}
			}
		})
	}
}

func TestLoadManyFailsOnlyForTheFaultyUsers(t *testing.T) {
	t.Parallel()
	_, client := single(t)
	store, users := textStore(t, client, defaults), someUsers(10)
	plant(t, store, users)
	client.Set(t.Context(), "text:{@user3:example.org}", "no revision", 0)
	client.Del(t.Context(), "text:{@user4:example.org}")
	client.HSet(t.Context(), "text:{@user4:example.org}", "x", "y")
	loaded := store.LoadMany(t.Context(), append(users, "alice", ""))
	for user, got := range loaded {
		switch user {
		case "@user3:example.org", "@user4:example.org":
			wantKind(t, got.Err, fault.Database)
		case "alice", "":
			if got.Err == nil {
				t.Errorf("%q gave no error", user)
			}
		default:
			if got.Err != nil || got.Value.Value != string(user)[:6] {
				t.Errorf("%s: got %+v", user, got)
			}
		}
	}
	if len(loaded) != 12 {
		t.Errorf("got %d results", len(loaded))
	}
}

func TestLoadManyWithoutAMasterFailsOnlyForItsUsers(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(*redistest.Server){
		"stopped": (*redistest.Server).Stop,
		"paused":  (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
			client := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: cluster.Addrs(), ContextTimeoutEnabled: true, DialerRetries: 1,
				DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second,
			})
			t.Cleanup(func() { client.Close() })
			store, users := textStore(t, client, defaults), someUsers(1200)
			plant(t, store, users)
			dead := cluster.Masters()[1]
			strike(dead)
			began := time.Now()
			loaded := store.LoadMany(t.Context(), users)
			if took := time.Since(began); took > DefaultConfig().OperationTimeout+late {
				t.Errorf("it took %v", took)
			}
			failed := 0
			for _, user := range users {
				got, host := loaded[user], ownerOf(t, client, "text:{"+string(user)+"}")
				if host == dead.Addr() {
					failed++
					wantKind(t, got.Err, fault.Unavailable)
				} else if got.Err != nil || got.Value.Value != string(user)[:6] {
					t.Errorf("%s of a working master: got %+v", user, got)
				}
			}
			if failed < 100 || failed > 700 {
				t.Errorf("%d users have failed", failed)
			}
		})
	}
}

func ownerOf(t *testing.T, client *redis.ClusterClient, key string) string {
	t.Helper()
	node, err := client.MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return node.Options().Addr
}

func TestRemoveWaitsForItsDurability(t *testing.T) {
	t.Parallel()
	pair := replicated(t, 1)
	master, replica := pair.Master().Client(t), pair.Replicas()[0]
	const short = 100 * time.Millisecond
	store := textStore(t, master, func(c *Config) { c.Durability = Durability{Replicas: 1, Timeout: short} })
	patient := textStore(t, master, func(c *Config) { c.Durability = oneReplica })
	if err := patient.Update(t.Context(), alice, to("a")); err != nil {
		t.Fatal(err)
	}
	if err := patient.Remove(t.Context(), alice); err != nil {
		t.Error(err)
	}
	if n := replica.Client(t).Exists(t.Context(), aliceKey).Val(); n != 0 {
		t.Error("the replica still has the removed value")
	}
	if err := patient.Update(t.Context(), alice, to("b")); err != nil {
		t.Fatal(err)
	}
	pause(t, replica)
	began := time.Now()
	wantKind(t, store.Remove(t.Context(), alice), fault.Unavailable)
	if took := time.Since(began); took < short {
		t.Errorf("it waited for %v", took)
	}
	replica.Resume()
	if err := patient.Remove(t.Context(), alice); err != nil { // already removed
		t.Error(err)
	}
	if n := replica.Client(t).Exists(t.Context(), aliceKey).Val(); n != 0 {
		t.Error("the replica still has the removed value")
	}
}

func TestChangeInProgressFindsARemovedValueMissing(t *testing.T) {
	t.Parallel()
	_, client := single(t)
	store := textStore(t, client, defaults)
	plant(t, store, []mxid.UserID{alice})
	var found []string
	err := store.Update(t.Context(), alice, func(text *string) error {
		if found = append(found, *text); len(found) == 1 {
			if err := store.Remove(t.Context(), alice); err != nil {
				t.Error(err)
			}
		}
		*text += "!"
		return nil
	})
	if want := []string{"@alice", ""}; err != nil || !slices.Equal(found, want) {
		t.Errorf("the edit found %q, error %v, want %q", found, err, want)
	}
	wantText(t, store, "!")
}
