package faults

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/rulestore"
)

// feedHost is a host's push rules and feed, with the changes that its listener received.
type feedHost struct {
	t     *testing.T
	rules module.RuleService
	sync  module.SyncService
	feed  *feed.Feed

	mu       sync.Mutex
	received map[mxid.UserID]time.Time // the last call that was about a user
	missed   time.Time                 // the last call that was about all
}

// newFeedHost starts a host that checks the store only when a watch begins. The watch brings all later changes.
func newFeedHost(t *testing.T, client redis.UniversalClient) *feedHost {
	t.Helper()
	return newOutpostWith(t, client, rediscommit.Options{})
}

func newOutpostWith(t *testing.T, client redis.UniversalClient, options rediscommit.Options) *feedHost {
	t.Helper()
	store, err := rulestore.New(client, rediscommit.DefaultConfig(), options)
	if err != nil {
		t.Fatal(err)
	}
	o := &feedHost{t: t, received: map[mxid.UserID]time.Time{}}
	cfg := feed.DefaultConfig()
	cfg.Recheck = time.Hour
	feed, err := feed.New(module.Stores{Rules: store}, cfg, nil, feed.Listeners{Rules: []module.ChangeListener{o}})
	if err != nil {
		t.Fatal(err)
	}
	o.feed = feed
	services := service.New(module.Stores{Rules: store}, feed, service.Options{Limits: pushrule.DefaultLimits()})
	o.rules = services.Rules()
	o.sync = feed.Sync(o.rules)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { feed.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return o
}

func (o *feedHost) PushRulesChanged(_ context.Context, user mxid.UserID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.received[user] = time.Now()
}

func (o *feedHost) PushRulesMissed(context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.missed = time.Now()
}

func (o *feedHost) syncs(user mxid.UserID) module.Content {
	o.t.Helper()
	update, err := o.sync.Since(o.t.Context(), user, 0)
	if err != nil {
		o.t.Fatal(err)
	}
	return update.Content
}

// put makes a change, with retries, and returns when it succeeded.
func (o *feedHost) put(user mxid.UserID, id string) time.Time {
	o.t.Helper()
	for deadline := time.Now().Add(hosttest.Never); ; time.Sleep(10 * time.Millisecond) {
		err := o.rules.Put(o.t.Context(), user, pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
		if err == nil {
			return time.Now()
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("%s of %s: %v", id, user, err)
		}
	}
}

// waitFor waits until the host was notified of a rule, and returns when.
func (o *feedHost) waitFor(user mxid.UserID, id string) time.Time {
	o.t.Helper()
	var loaded time.Time
	for deadline := time.Now().Add(hosttest.Never); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		o.mu.Lock()
		last := o.received[user]
		if o.missed.After(last) {
			last = o.missed
		}
		o.mu.Unlock()
		if !last.After(loaded) {
			continue
		}
		content, err := o.rules.Content(o.t.Context(), user)
		if _, found := content.Rules.Rule(pushrule.Room, id); found {
			return last
		}
		if err == nil {
			loaded = last
		}
	}
	o.t.Errorf("%s of %s was not received", id, user)
	return time.Now()
}

func pairOfFeedHosts(t *testing.T, cluster *redistest.ClusterServers, users []string) [2]*feedHost {
	t.Helper()
	var pair [2]*feedHost
	for n := range pair {
		client := demoCluster(cluster.Addrs())
		t.Cleanup(func() { client.Close() })
		pair[n] = newFeedHost(t, client)
	}
	for _, user := range users {
		for _, o := range pair {
			o.syncs(mxid.UserID(user))
		}
		pair[0].put(mxid.UserID(user), "first")
		pair[1].waitFor(mxid.UserID(user), "first")
	}
	return pair
}

// channelSlot returns the slot of the channel for changes. Hosts subscribe at the master of this slot.
func channelSlot(t *testing.T, client *redis.ClusterClient) int {
	t.Helper()
	slot, err := client.ClusterKeySlot(t.Context(), "push_rules_changed").Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(slot)
}

func TestMissedChangesArriveAfterTheSubscriptionsNodeFails(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(*testing.T, *redistest.ClusterServers, *redistest.Server){
		"killed": func(_ *testing.T, _ *redistest.ClusterServers, s *redistest.Server) { s.Stop() },
		"frozen": func(_ *testing.T, _ *redistest.ClusterServers, s *redistest.Server) { s.Pause() },
		"made a replica": func(t *testing.T, c *redistest.ClusterServers, s *redistest.Server) {
			replicas, err := c.ReplicasOf(t.Context(), s)
			if err == nil {
				err = c.Failover(t.Context(), replicas[0])
			}
			if err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.Cluster(t, 3, 1, "--cluster-require-full-coverage", "no")
			victim, err := cluster.MasterOf(t.Context(), channelSlot(t, cluster.Client(t)))
			if err != nil {
				t.Fatal(err)
			}
			places, err := (&servers{cluster: cluster, nodes: cluster.Nodes()}).placesOfEach(t.Context(), sharing, keysOfUser)
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, p := range places {
				all = append(all, p.name)
			}
			pair := pairOfFeedHosts(t, cluster, all)
			struck := time.Now()
			strike(t, cluster, victim)
			var made sync.WaitGroup
			for n, user := range all {
				made.Go(func() {
					at := pair[0].put(mxid.UserID(user), "missed")
					received := pair[1].waitFor(mxid.UserID(user), "missed")
					if n%sharing == 0 {
						t.Logf("a change %.2f s after the strike was received after %.2f s", at.Sub(struck).Seconds(), received.Sub(struck).Seconds())
					}
				})
			}
			made.Wait()
			for _, user := range all {
				pair[1].put(mxid.UserID(user), "later")
				pair[0].waitFor(mxid.UserID(user), "later")
			}
		})
	}
}

func TestListenersReceiveChangesWhileASlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 1)
	client := cluster.Client(t)
	user := hosttest.NewUser()
	slot, err := client.ClusterKeySlot(t.Context(), hosttest.EventKey(user)).Result()
	if err != nil {
		t.Fatal(err)
	}
	pair := pairOfFeedHosts(t, cluster, []string{user})
	for _, moved := range []struct {
		name string
		slot int
		keys []string
	}{
		{"of the user", int(slot), []string{hosttest.EventKey(user)}},
		{"of the channel", channelSlot(t, client), nil},
	} {
		received := func(when string) {
			t.Helper()
			for n, o := range pair {
				id := fmt.Sprintf("%s %s %d", moved.name, when, n)
				o.put(mxid.UserID(user), id)
				pair[1-n].waitFor(mxid.UserID(user), id)
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		to, err := hosttest.OtherMaster(t.Context(), cluster, moved.slot)
		must(err)
		move, err := cluster.BeginMove(t.Context(), moved.slot, to)
		must(err)
		received("when the move has begun")
		must(move.MoveKeys(t.Context(), moved.keys...))
		received("when the keys have moved")
		must(move.Finish(t.Context()))
		received("when the move has ended")
	}
}
