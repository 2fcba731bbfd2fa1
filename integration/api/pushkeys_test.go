package api

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
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

// owners returns the users with a visible pusher of the key.
func (h pushkeyHost) owners(t *testing.T, key pusher.Key, users []mxid.UserID) (owners []mxid.UserID) {
	t.Helper()
	for _, user := range users {
		list, err := h.service.List(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		if _, found := list.Pusher(key); found {
			owners = append(owners, user)
		}
	}
	return owners
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
		storetest.Pushkeys(t,
			func(t *testing.T) module.PushkeyIndex { return newPushkeyHost(t, newClient(t)).index },
			func(t *testing.T) module.PusherStore { return newPushkeyHost(t, newClient(t)).store })
	})
}

func TestAnUnreadableEntryIsNotOverwritten(t *testing.T) {
	t.Parallel()
	server, client := hosttest.Embedded(t)
	h, p := newPushkeyHost(t, client), hosttest.SharedPusher("key")
	key := "pushkey:{" + string(p.Digest()) + "}"
	for _, text := range []string{
		"", "null", "{}", `{"form":2,"last":1,"taken":2,"by":"@a:b","users":[]}`, `{"form":2,"last":1,"taken":1,"by":"@a:b","users":{}}`,
		`{"form":2,"last":1.5,"taken":1,"by":"@a:b","users":[]}`, `{"form":2,"last":1,"last":1,"taken":1,"by":"@a:b","users":[]}`, `{"form":2}`,
		`{"form":2,"last":1,"taken":1,"by":"@a:b","users":[]}x`, `{"taken":1,"holders":{},"losers":{}}`, `{"claims":{"1":"@a:b"}}`,
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
			users, p := manyUsers(2+round%7), hosttest.SharedPusher(fmt.Sprintf("key of round %d", round/2))
			for i, err := range setAtOnce(t.Context(), hosts, users, p) {
				if fault.KindOf(err) == fault.Unavailable {
					err = hosttest.Persist(func() error { return hosts[i%2].service.Set(t.Context(), users[i], p, pusher.RemoveOthers) })
				}
				if err != nil {
					t.Fatalf("round %d: %s: %v", round, users[i], err)
				}
			}
			owners, same := hosts[0].owners(t, p.Key, manyUsers(8)), hosts[1].owners(t, p.Key, manyUsers(8))
			if len(owners) != 1 || !slices.Equal(same, owners) {
				t.Fatalf("round %d: owned by %v, on the other host by %v", round, owners, same)
			}
		}
	})
}

// The test cuts connections of one of two hosts, before a command or before its reply.
func TestAPushkeyNeverHasTwoUsersAfterCutConnections(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	proxy := redistest.NewProxy(t, server)
	unstable := proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	hosts := [2]pushkeyHost{newPushkeyHost(t, unstable), newPushkeyHost(t, server.Client(t))}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		if random.IntN(2) == 0 {
			proxy.CutReply(1 + random.IntN(8))
		} else {
			proxy.CutRequest(1 + random.IntN(8))
		}
		cutRound(t, hosts, round)
	}
}

func cutRound(t *testing.T, hosts [2]pushkeyHost, round int) {
	t.Helper()
	failures := 0
	users, p := manyUsers(2+round%4), hosttest.SharedPusher(fmt.Sprintf("key of round %d", round))
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
	owners := stable.owners(t, p.Key, users)
	if len(owners) > 1 || len(owners) == 0 && failures == 0 {
		t.Errorf("round %d: owned by %v, %d of %d have failed", round, owners, failures, len(users))
	}
	if err := stable.service.Set(t.Context(), newcomer, p, pusher.RemoveOthers); err != nil {
		t.Fatal(err)
	}
	if owners := stable.owners(t, p.Key, append(users, newcomer)); !slices.Equal(owners, []mxid.UserID{newcomer}) {
		t.Errorf("round %d: owned by %v after the next claim", round, owners)
	}
	if err := stable.service.Delete(t.Context(), newcomer, p.Key); err != nil {
		t.Fatal(err)
	}
	if owners := stable.owners(t, p.Key, append(users, newcomer)); owners != nil {
		t.Errorf("round %d: owned by %v after the owner has deleted it", round, owners)
	}
}
