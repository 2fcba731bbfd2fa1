package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/pusherstore"
)

type pushkeyHost struct {
	store   *pusherstore.Store
	index   *pusherstore.Index
	service module.PusherService
}

func newPushkeyHost(t *testing.T, client redis.UniversalClient) pushkeyHost {
	t.Helper()
	store, err := pusherstore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index, err := pusherstore.NewIndex(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	options := service.Options{Policy: pusher.DefaultPolicy()}
	return pushkeyHost{store, index, service.New(module.Stores{Pushers: store, Pushkeys: index}, nil, options).Pushers()}
}

func sharedPusher(pushkey string) pusher.Pusher {
	return pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.HTTP, Device: "DEVICE",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`}
}

func (h pushkeyHost) owners(t *testing.T, key pusher.Key, users []mxid.UserID) (owners []mxid.UserID) {
	t.Helper()
	for _, user := range users {
		list, err := h.store.Load(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		if _, found := list.Pusher(key); found {
			owners = append(owners, user)
		}
	}
	return owners
}

func (h pushkeyHost) claimants(t *testing.T, key pusher.Key) []mxid.UserID {
	t.Helper()
	claims, err := h.index.Load(t.Context(), key.Digest())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(slices.Values(claims.Users()))
}

func manyUsers(n int) (users []mxid.UserID) {
	for i := range n {
		users = append(users, mxid.UserID(fmt.Sprintf("@user%d:example.org", i)))
	}
	return users
}

func setAtOnce(ctx context.Context, hosts [2]pushkeyHost, users []mxid.UserID, p pusher.Pusher) []error {
	errs := make([]error, len(users))
	var group sync.WaitGroup
	for i, user := range users {
		group.Go(func() { errs[i] = hosts[i%2].service.Set(ctx, user, p, pusher.RemoveOthers) })
	}
	group.Wait()
	return errs
}

func TestPushkeyIndexContract(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		storetest.Pushkeys(t, func(t *testing.T) module.PushkeyIndex { return newPushkeyHost(t, newClient(t)).index })
	})
}

func TestUnreadableClaimsAreNotOverwritten(t *testing.T) {
	t.Parallel()
	server, client := embedded(t)
	h, p := newPushkeyHost(t, client), sharedPusher("key")
	key := "pushkey:{" + string(p.Digest()) + "}"
	for _, text := range []string{
		"", "null", "{}", `{"claims":[]}`, `{"claims":{"1":2}}`, `{"claims":{"@a:b":1}}`, `{"claims":{"1.5":"@a:b"}}`, `{"claims":{"1":"@a:b","1":"@a:c"}}`, `{"claims":{}}x`,
	} {
		if err := server.Set(key, text); err != nil {
			t.Fatal(err)
		}
		_, loadErr := h.index.Load(t.Context(), p.Digest())
		setErr := h.service.Set(t.Context(), "@a:b", p, pusher.RemoveOthers)
		for _, err := range []error{loadErr, setErr} {
			if fault.KindOf(err) != fault.Database {
				t.Errorf("%q: got error %v", text, err)
			}
		}
		if kept, err := server.Get(key); err != nil || kept != text {
			t.Errorf("%q: has become %q, %v", text, kept, err)
		}
	}
	if owners := h.owners(t, p.Key, []mxid.UserID{"@a:b"}); owners != nil {
		t.Error("a pusher was stored without a claim")
	}
}

func eachRealRedis(t *testing.T, run func(t *testing.T, newClient func() redis.UniversalClient)) {
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		redistest.Require(t)
		server := redistest.Single(t)
		run(t, func() redis.UniversalClient { return server.Client(t) })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		redistest.Require(t)
		cluster := redistest.Cluster(t, 3, 1)
		run(t, func() redis.UniversalClient { return cluster.Client(t) })
	})
}

func TestOneOfManySimultaneousUsersKeepsAPushkey(t *testing.T) {
	t.Parallel()
	eachRealRedis(t, func(t *testing.T, newClient func() redis.UniversalClient) {
		hosts := [2]pushkeyHost{newPushkeyHost(t, newClient()), newPushkeyHost(t, newClient())}
		for round := range 50 {
			users, p := manyUsers(2+round%7), sharedPusher(fmt.Sprintf("key of round %d", round/2))
			for i, err := range setAtOnce(t.Context(), hosts, users, p) {
				if fault.KindOf(err) == fault.Unavailable {
					err = persist(func() error { return hosts[i%2].service.Set(t.Context(), users[i], p, pusher.RemoveOthers) })
				}
				if err != nil {
					t.Fatalf("round %d: %s: %v", round, users[i], err)
				}
			}
			owners, claimants := hosts[0].owners(t, p.Key, manyUsers(8)), hosts[1].claimants(t, p.Key)
			if len(owners) != 1 || !slices.Equal(claimants, owners) {
				t.Fatalf("round %d: owned by %v, the index names %v", round, owners, claimants)
			}
		}
	})
}

// The test cuts connections of one of two hosts, before a command or before its reply. The host does not retry, as
// if it had died.
func TestNextClaimReconcilesAPushkeyAfterCutConnections(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	proxy := redistest.NewProxy(t, server)
	unstable := proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	hosts := [2]pushkeyHost{newPushkeyHost(t, unstable), newPushkeyHost(t, server.Client(t))}
	random := rand.New(rand.NewPCG(1, 2))
	failures := 0
	for round := range 60 {
		if random.IntN(2) == 0 {
			proxy.CutReply(1 + random.IntN(20))
		} else {
			proxy.CutRequest(1 + random.IntN(20))
		}
		failures += cutRound(t, hosts, round)
	}
	if failures == 0 {
		t.Error("nothing has failed")
	}
}

func cutRound(t *testing.T, hosts [2]pushkeyHost, round int) (failures int) {
	t.Helper()
	users, p := manyUsers(2+round%4), sharedPusher(fmt.Sprintf("key of round %d", round))
	for i, err := range setAtOnce(t.Context(), hosts, users, p) {
		if err == nil {
			continue
		}
		failures++
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("round %d: %s: %v", round, users[i], err)
		}
	}
	const newcomer mxid.UserID = "@newcomer:example.org"
	stable := hosts[1]
	wantNamed(t, stable, p.Key, users)
	if err := stable.service.Set(t.Context(), newcomer, p, pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	if err := service.New(module.Stores{Pushers: stable.store, Pushkeys: stable.index}, nil, service.Options{}).Host(nil).ReconcilePushkeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	owners := stable.owners(t, p.Key, users)
	if len(owners) > 1 || len(owners) == 0 && failures < len(users) {
		t.Errorf("round %d: owned by %v, %d of %d have failed", round, owners, failures, len(users))
	}
	if err := stable.service.Set(t.Context(), newcomer, p, pusher.RemoveOthers); err != nil {
		t.Fatal(err)
	}
	if owners := stable.owners(t, p.Key, append(users, newcomer)); !slices.Equal(owners, []mxid.UserID{newcomer}) {
		t.Errorf("round %d: owned by %v after the next claim", round, owners)
	}
	return failures
}

func wantNamed(t *testing.T, h pushkeyHost, key pusher.Key, users []mxid.UserID) {
	t.Helper()
	named := h.claimants(t, key)
	for _, owner := range h.owners(t, key, users) {
		if !slices.Contains(named, owner) {
			t.Errorf("%s has a pusher, but only %v are named", owner, named)
		}
	}
}
