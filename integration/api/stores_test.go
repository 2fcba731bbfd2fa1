package api

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread/redisunread"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// eachRedis runs a test on every kind of Redis; newClient returns another host's client to the same servers.
func eachRedis(t *testing.T, run func(t *testing.T, newClient func(*testing.T) redis.UniversalClient)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		_, client := hosttest.Embedded(t)
		run(t, func(*testing.T) redis.UniversalClient { return client })
	})
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		redistest.Require(t)
		server := redistest.Single(t)
		run(t, func(t *testing.T) redis.UniversalClient { return server.Client(t) })
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		redistest.Require(t)
		sentinel := redistest.Sentinel(t)
		run(t, func(t *testing.T) redis.UniversalClient {
			client := redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: sentinel.MasterName(), SentinelAddrs: []string{sentinel.Addr()}, ContextTimeoutEnabled: true,
			})
			t.Cleanup(func() { client.Close() })
			return client
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		redistest.Require(t)
		cluster := redistest.Cluster(t, 3, 0)
		run(t, func(t *testing.T) redis.UniversalClient { return cluster.Client(t) })
	})
}

// eachWay runs a test on every kind of Redis, and behind proxies that cut the connection instead of every fourth
// reply to a script.
func eachWay(t *testing.T, run func(t *testing.T, newClient func(*testing.T) redis.UniversalClient)) {
	eachRedis(t, run)
	t.Run("behind a proxy", func(t *testing.T) {
		t.Parallel()
		redistest.Require(t)
		server := redistest.Single(t)
		run(t, func(t *testing.T) redis.UniversalClient {
			proxy := redistest.NewProxy(t, server)
			for n := range 100 {
				proxy.CutReply(4*(n+1), "EVALSHA")
			}
			return proxy.Client(t)
		})
	})
}

func TestRuleStoreContract(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		newStore := func(t *testing.T) module.RuleStore {
			store, err := rulestore.New(newClient(t), rediscommit.DefaultConfig(), rediscommit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return store
		}
		storetest.Rules(t, newStore, func(t *testing.T, user mxid.UserID, content string) {
			event := `{"type":"m.push_rules","content":` + content + `}`
			if err := newClient(t).Set(t.Context(), hosttest.EventKey(string(user)), event, 0).Err(); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestPusherStoreContract(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		storetest.Pushers(t, func(t *testing.T) module.PusherStore {
			store, err := pusherstore.New(newClient(t), rediscommit.DefaultConfig(), rediscommit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return store
		})
	})
}

func TestUnreadStoreContract(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		newStore := func(t *testing.T) module.UnreadStore {
			store, err := redisunread.New(newClient(t), rediscommit.DefaultConfig(), rediscommit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return store
		}
		storetest.Unread(t, newStore)
		storetest.UnreadDamage(t, newStore(t), func(t *testing.T, user mxid.UserID) {
			if err := newClient(t).Set(t.Context(), stored.Keys{}.Unread(user), "no list", 0).Err(); err != nil {
				t.Fatal(err)
			}
		})
	})
}
