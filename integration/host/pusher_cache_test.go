package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// pusherCacheHost is a host with its cache of pushers in use.
type pusherCacheHost struct {
	t       *testing.T
	feed    *feed.Feed
	store   *pusherstore.Store
	pushers module.PusherService
	host    module.HostService
}

func newPusherCacheHost(t *testing.T, client redis.UniversalClient, accounts module.Accounts) *pusherCacheHost {
	t.Helper()
	cfg, o := rediscommit.DefaultConfig(), rediscommit.Options{}
	rules, err1 := rulestore.New(client, cfg, o)
	pushers, err2 := pusherstore.New(client, cfg, o)
	index, err3 := pusherstore.NewIndex(client, cfg, o)
	stores, changes := module.Stores{Rules: rules, Pushers: pushers, Pushkeys: index}, feed.DefaultConfig()
	changes.Recheck = time.Hour
	feed, err4 := feed.New(stores, changes, nil, feed.Listeners{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	services := service.New(stores, feed, service.Options{Policy: pusher.DefaultPolicy(), Accounts: accounts})
	h := &pusherCacheHost{t, feed, pushers, services.Pushers(), services.Host(services.Rules())}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { feed.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	h.read(hosttest.Alice)
	h.watches()
	return h
}

// watches waits until the host watches both stores.
func (h *pusherCacheHost) watches() {
	h.t.Helper()
	hosttest.Eventually(h.t, "the host watches", func() bool { return h.feed.Stats().Watching })
}

// read returns the number of the user's pushers.
func (h *pusherCacheHost) read(user mxid.UserID) int {
	h.t.Helper()
	result := h.feed.Pushers(h.t.Context(), []mxid.UserID{user}, h.host.Pushers)[0]
	if result.Err != nil {
		h.t.Fatal(result.Err)
	}
	return result.Value.Len()
}

// wantSoon waits until the host reads a number of pushers, for a second at most.
func (h *pusherCacheHost) wantSoon(when string, want int) {
	h.t.Helper()
	began := time.Now()
	for h.read(hosttest.Alice) != want {
		if time.Since(began) > time.Second {
			h.t.Fatalf("%s: the host reads %d pushers after a second, want %d", when, h.read(hosttest.Alice), want)
		}
		time.Sleep(time.Millisecond)
	}
	h.t.Logf("%s: %v", when, time.Since(began))
}

func (h *pusherCacheHost) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *pusherCacheHost) set(user mxid.UserID, pushkey string, others pusher.Others) {
	h.t.Helper()
	h.must(h.pushers.Set(h.t.Context(), user, hosttest.SharedPusher(pushkey), others))
}

func TestCachedPushersFollowEveryChangeByAnotherHost(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server, cluster := redistest.Single(t), redistest.Cluster(t, 3, 0)
	for name, newClient := range map[string]func() redis.UniversalClient{
		"a single node": func() redis.UniversalClient { return server.Client(t) },
		"a cluster":     func() redis.UniversalClient { return cluster.Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			here, there := newPusherCacheHost(t, newClient(), nil), newPusherCacheHost(t, newClient(), nil)
			both := func(when string, want int) {
				t.Helper()
				if got := there.read(hosttest.Alice); got != want {
					t.Errorf("%s: the host of the request reads %d pushers, want %d", when, got, want)
				}
				here.wantSoon(when, want)
			}
			key := hosttest.SharedPusher("key").Key
			set := func() { there.set(hosttest.Alice, "key", pusher.KeepOthers); both("a set", 1) }
			both("nothing", 0)
			set()
			there.set(hosttest.Bob, "key", pusher.RemoveOthers)
			both("another user's set", 0)
			set()
			there.must(there.pushers.Delete(t.Context(), hosttest.Alice, key))
			both("a deletion", 0)
			set()
			list, err := there.pushers.List(t.Context(), hosttest.Alice)
			there.must(err)
			p, _ := list.Pusher(key)
			there.must(there.host.RemovePusher(t.Context(), hosttest.Alice, key, p.SetAt))
			both("a rejected pusher", 0)
			set()
			there.must(there.host.RemoveDevicePushers(t.Context(), hosttest.Alice, "DEVICE"))
			both("a logout", 0)
			set()
			there.must(there.host.KeepOnlyDevicePushers(t.Context(), hosttest.Alice, "OTHER"))
			both("a password change", 0)
			set()
			there.must(there.host.RetainDevicePushers(t.Context(), hosttest.Alice, "OTHER"))
			both("a login", 0)
			set()
			there.must(there.host.ForgetUser(t.Context(), hosttest.Alice))
			both("a deactivation", 0)
			_, err = there.host.Import(t.Context(), hosttest.Alice, module.Import{Pushers: []pusher.Pusher{hosttest.SharedPusher("old")}}, module.StoreImport)
			there.must(err)
			both("an import", 1)
			there.must(there.store.Delete(t.Context(), hosttest.Alice))
			here.wantSoon("a removed hash", 0)
			_, err = there.store.Replace(t.Context(), hosttest.Alice, nil, map[string]string{key.Field(): string(p.AppendStored(nil))})
			there.must(err)
			here.wantSoon("a repair", 1)
		})
	}
}

// The host cannot connect again until the other host has made a change.
func TestNoCachedPushersSurviveACutWatch(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	admin := server.Client(t)
	var isDown atomic.Bool
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if isDown.Load() {
				return nil, errors.New("no route")
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { client.Close() })
	here, there := newPusherCacheHost(t, client, nil), newPusherCacheHost(t, server.Client(t), nil)
	for n := range 5 {
		pushkey := fmt.Sprint("key", n)
		here.watches()
		if got := here.read(hosttest.Alice); got != n {
			t.Fatalf("%d pushers, want %d", got, n)
		}
		isDown.Store(true)
		if err := admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		hosttest.Eventually(t, "the host has noticed", func() bool { return !here.feed.Stats().Watching })
		there.set(hosttest.Alice, pushkey, pusher.KeepOthers)
		if got := here.read(hosttest.Alice); got != n+1 {
			t.Errorf("without a watch: %d pushers, want %d", got, n+1)
		}
		there.must(there.pushers.Delete(t.Context(), hosttest.Alice, hosttest.SharedPusher(pushkey).Key))
		isDown.Store(false)
		here.watches()
		if got := here.read(hosttest.Alice); got != n {
			t.Errorf("in the next watch: %d pushers, want %d", got, n)
		}
		there.watches()
		there.set(hosttest.Alice, pushkey, pusher.KeepOthers)
		here.wantSoon("a change in the next watch", n+1)
	}
}

// endedSessions reports all devices as logged out once it is true.
type endedSessions struct{ atomic.Bool }

func (e *endedSessions) LoggedIn(context.Context, mxid.UserID, string) (bool, error) {
	return !e.Load(), nil
}

func TestALogoutDropsCachedPushersOfAllHosts(t *testing.T) {
	t.Parallel()
	server, accounts := redistest.Single(t), &endedSessions{}
	here, there := newPusherCacheHost(t, server.Client(t), accounts), newPusherCacheHost(t, server.Client(t), accounts)
	there.set(hosttest.Alice, "key", pusher.KeepOthers)
	here.wantSoon("a set", 1)
	accounts.Store(true)
	there.must(there.host.RemoveDevicePushers(t.Context(), hosttest.Alice, "DEVICE"))
	if got := there.read(hosttest.Alice); got != 0 {
		t.Errorf("the host of the logout reads %d pushers", got)
	}
	here.wantSoon("a logout", 0)
}

func TestCachedPushersCostNoCommand(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	asked := redistest.RecordTrips(client)
	h := newPusherCacheHost(t, client, nil)
	users := make([]mxid.UserID, 1000)
	for n := range users {
		users[n] = mxid.UserID(fmt.Sprintf("@user%d:example.org", n))
	}
	h.feed.Pushers(t.Context(), users, h.host.Pushers)
	if len(asked.Take()) == 0 {
		t.Fatal("the first call asked nothing")
	}
	before := hosttest.Calls(t, server.Client(t))
	for range 10 {
		h.feed.Pushers(t.Context(), users, h.host.Pushers)
	}
	if sent, after := asked.Take(), hosttest.Calls(t, server.Client(t)); len(sent) != 0 || after["hgetall"] != before["hgetall"] {
		t.Errorf("sent %v", sent)
	}
}
