package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

type queueConfig struct {
	Redis rediscommit.Config
	redisqueue.Config
}

func defaultQueueConfig() queueConfig {
	return queueConfig{rediscommit.DefaultConfig(), redisqueue.DefaultConfig()}
}

func newQueue(t *testing.T, client redis.UniversalClient, change ...func(*queueConfig)) *redisqueue.Queue {
	t.Helper()
	cfg := defaultQueueConfig()
	for _, c := range change {
		c(&cfg)
	}
	q, err := redisqueue.New(client, cfg.Redis, cfg.Config, rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestDeliveryQueueContract(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue { return newQueue(t, newClient(t)) })
	})
	t.Run("with a prefix", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			return newQueue(t, server.Client(t), func(c *queueConfig) { c.Redis.KeyPrefix = "hs1:" })
		})
	})
	t.Run("replicas", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.Cluster(t, 3, 1)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			return newQueue(t, cluster.Client(t), func(c *queueConfig) { c.Redis.Durability.Replicas = 1 })
		})
	})
	t.Run("behind proxies", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			proxy := redistest.NewProxy(t, server)
			for n := range 100 {
				proxy.CutReply(5*(n+1), "EVALSHA")
				proxy.CutReply(4*(n+1), "XADD")
			}
			return subscribed{newQueue(t, proxy.Client(t)), newQueue(t, server.Client(t))}
		})
	})
}

// subscribed is a queue that listens elsewhere, as nobody can behind a proxy.
type subscribed struct {
	module.DeliveryQueue
	direct module.DeliveryQueue
}

func (s subscribed) Watch(ctx context.Context, watching func(), appended func(int)) error {
	return s.direct.Watch(ctx, watching, appended)
}

// A checkpoint that was given up waits in a connection, and comes behind the next
// one of the same owner.
func TestALateCheckpointChangesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	proxy := redistest.NewProxy(t, server)
	impatient := proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	q := newQueue(t, impatient, func(c *queueConfig) { c.Redis.OperationTimeout = 2 * time.Second })
	ctx := t.Context()
	lease := q.Acquire(ctx, "host", time.Minute, []int{1})[1]
	if lease.Err != nil {
		t.Fatal(lease.Err)
	}
	epoch := lease.Value.Epoch
	keep := func(ctx context.Context, text string) error {
		progress := module.Progress{Epoch: epoch, Finished: []byte(text), Held: map[string][]byte{"a": []byte(text)}}
		return q.Checkpoint(ctx, map[int]module.Progress{1: progress})[1]
	}
	if err := keep(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	held := proxy.HoldRequest(1, "EVALSHA")
	soon, giveUp := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- keep(soon, "second") }()
	<-held.Struck()
	giveUp()
	if err := <-kept; err == nil {
		t.Fatal("what Redis does not have yet is kept")
	}
	if err := keep(ctx, "third"); err != nil {
		t.Fatal(err)
	}
	ran := func() string {
		return infoField(t, server.Client(t), "commandstats", "cmdstat_evalsha")
	}
	before := ran()
	held.Release()
	for deadline := time.Now().Add(time.Minute); ran() == before; {
		if time.Now().After(deadline) {
			t.Fatal("the late checkpoint does not come")
		}
	}
	c, err := q.Restore(ctx, 1)
	if err != nil || string(c.Finished) != "third" || string(c.Held["a"]) != "third" {
		t.Errorf("got %q, %q, %v", c.Finished, c.Held, err)
	}
}

// infoField returns the value of a field of INFO.
func infoField(t *testing.T, client redis.UniversalClient, section, field string) string {
	t.Helper()
	info, err := client.Info(t.Context(), section).Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Nobody owns the shard, or its owner cannot keep up.
func TestALogIsBounded(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q := newQueue(t, client, func(c *queueConfig) { c.LogEntries = 10 })
	ctx := t.Context()
	for n := range 25 {
		if err := q.Append(ctx, fmt.Sprint(n), time.Minute, map[int][]byte{3: fmt.Append(nil, n)}); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := q.Read(ctx, 3, "", 100)
	if err != nil || len(entries) > 10 || len(entries) < 9 || entries[len(entries)-1].Data != "24" {
		t.Errorf("got %d entries, %v", len(entries), err)
	}
	lease := q.Acquire(ctx, "host", time.Minute, []int{3})[3]
	if lease.Err != nil || lease.Value.Evicted+int64(len(entries)) != 25 {
		t.Errorf("got %+v and %d entries", lease, len(entries))
	}
}

// What is remembered of what was added ends with the window.
func TestWhatWasSeenIsBounded(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q := newQueue(t, client)
	ctx := t.Context()
	const window = 300 * time.Millisecond
	key := stored.Keys{}.ShardSeen(3)
	add := func(key string, window time.Duration) {
		t.Helper()
		if err := q.Append(ctx, key, window, map[int][]byte{3: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		t.Helper()
		if _, err := q.Read(ctx, 3, "", 1000); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 100 {
		add(fmt.Sprint(n), window)
	}
	read()
	if got := client.ZCard(ctx, key).Val(); got != 100 {
		t.Errorf("%d are remembered", got)
	}
	for deadline := time.Now().Add(time.Minute); client.Exists(ctx, key).Val() > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d are remembered", client.ZCard(ctx, key).Val())
		}
	}
	// An entry that is read drops those that are too old.
	if err := client.ZAdd(ctx, key, redis.Z{Score: 1, Member: "old"}).Err(); err != nil {
		t.Fatal(err)
	}
	add("new", time.Minute)
	read()
	if client.ZScore(ctx, key, "old").Err() == nil || client.ZScore(ctx, key, stored.SeenMember("new")).Err() != nil {
		t.Errorf("got %q", client.ZRange(ctx, key, 0, -1).Val())
	}
}

// A clock that went back by an hour would otherwise leave a shard without an owner
// for that hour, and keep a dead host among those that live.
func TestLeasesSurviveAClockThatGoesBack(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q := newQueue(t, client)
	ctx := t.Context()
	const lasts = 100 * time.Millisecond
	if first := q.Acquire(ctx, "a", lasts, []int{1})[1]; first.Err != nil || !first.Value.Held {
		t.Fatalf("got %+v", first)
	}
	later := time.Now().Add(time.Hour).UnixMilli()
	if err := client.HSet(ctx, stored.Keys{}.ShardState(1), stored.StateEnds, later).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.ZAdd(ctx, stored.Keys{}.DeliveryHosts(), redis.Z{Score: float64(later), Member: "dead"}).Err(); err != nil {
		t.Fatal(err)
	}
	if hosts, err := q.Join(ctx, "b", lasts); err != nil || !slices.Equal(hosts, []string{"b"}) {
		t.Errorf("got hosts %q, %v", hosts, err)
	}
	for deadline := time.Now().Add(time.Minute); !q.Acquire(ctx, "b", lasts, []int{1})[1].Value.Held; {
		if time.Now().After(deadline) {
			t.Fatal("the lease of the other clock does not end")
		}
	}
}

// The keys of a shard are moved, one after the other, while hosts add to it.
func TestAQueueOutlivesTheMoveOfItsSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	client := cluster.Client(t)
	q := newQueue(t, client)
	ctx, keys := t.Context(), stored.Keys{}
	const shard = 5
	lease := q.Acquire(ctx, "host", time.Minute, []int{shard})[shard]
	if lease.Err != nil || !lease.Value.Held {
		t.Fatalf("got %+v", lease)
	}
	add := func(n int) error {
		return q.Append(ctx, fmt.Sprint(n), time.Minute, map[int][]byte{shard: fmt.Append(nil, n)})
	}
	if err := add(0); err != nil {
		t.Fatal(err)
	}
	slot := int(client.ClusterKeySlot(ctx, keys.ShardLog(shard)).Val())
	stage := clusterStage{cluster: cluster}
	move, err := cluster.BeginMove(ctx, slot, stage.otherMaster(t, slot))
	if err != nil {
		t.Fatal(err)
	}
	if err := move.MoveKeys(ctx, keys.ShardLog(shard)); err != nil {
		t.Fatal(err)
	}
	added, kept := make(chan error, 1), make(chan error, 1)
	go func() { added <- add(1) }()
	go func() {
		progress := module.Progress{Epoch: lease.Value.Epoch, Finished: []byte("x")}
		kept <- q.Checkpoint(ctx, map[int]module.Progress{shard: progress})[shard]
	}()
	if err := errors.Join(move.MoveRest(ctx), move.Finish(ctx)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-added, <-kept); err != nil {
		t.Fatal(fault.Details(err))
	}
	entries, err := q.Read(ctx, shard, "", 10)
	if err != nil || len(entries) != 2 {
		t.Errorf("got %d entries, %v", len(entries), err)
	}
}

func TestDeliveryQueueConfigIsChecked(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*queueConfig){
		"LogEntries is 0":        func(c *queueConfig) { c.LogEntries = 0 },
		"LogEntries is 1000001":  func(c *queueConfig) { c.LogEntries = 1_000_001 },
		"OperationTimeout is 0s": func(c *queueConfig) { c.Redis.OperationTimeout = 0 },
		`KeyPrefix is "{"`:       func(c *queueConfig) { c.Redis.KeyPrefix = "{" },
		"less than the Redis client's Read": func(c *queueConfig) {
			c.Redis.Durability = rediscommit.Durability{Replicas: 1, Timeout: 4 * time.Second}
		},
	} {
		cfg := defaultQueueConfig()
		change(&cfg)
		client := redis.NewClient(&redis.Options{Addr: "localhost:1", ReadTimeout: time.Second})
		defer client.Close()
		if _, err := redisqueue.New(client, cfg.Redis, cfg.Config, rediscommit.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A host takes a shard on a master whose replica does not hear of it any more, and
// the replica takes the master's place. Were the lease held, two hosts would have
// the shard.
func TestALeaseThatAFailoverLosesIsNotHeld(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	pair := failover(t)
	durable := func(c *queueConfig) {
		c.Redis.Durability = rediscommit.Durability{Replicas: 1, Timeout: 200 * time.Millisecond}
	}
	before, ctx := newQueue(t, pair.master.Client(t), durable), t.Context()
	kept := before.Acquire(ctx, "a", time.Minute, []int{1})[1]
	if kept.Err != nil || !kept.Value.Held {
		t.Fatalf("got %+v", kept)
	}
	pair.strike()
	if lost := before.Acquire(ctx, "a", time.Minute, []int{2})[2]; fault.KindOf(lost.Err) != fault.Unavailable {
		t.Errorf("a lease that no replica has: got %+v", lost)
	}
	if err := before.Release(ctx, "a", 1, kept.Value.Epoch); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a lease that was given back, as no replica knows: got %v", err)
	}
	pair.master.Stop()
	after := newQueue(t, pair.revive().Client(t)).Acquire(ctx, "b", time.Minute, []int{1, 2})
	if after[1].Err != nil || after[1].Value.Held {
		t.Errorf("a lease that a replica has: got %+v", after[1])
	}
	if after[2].Err != nil || !after[2].Value.Held {
		t.Errorf("got %+v", after[2])
	}
}

// Two hosts take a shard one after the other. The second does so on a master that
// has not heard of the first, and whose clock is behind.
func TestAnEpochThatWasLostDoesNotComeAgain(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q, ctx, state := newQueue(t, client), t.Context(), stored.Keys{}.ShardState(1)
	last := time.Now().Add(time.Hour).UnixMicro()
	if err := client.HSet(ctx, state, stored.StateEpoch, last).Err(); err != nil {
		t.Fatal(err)
	}
	before, err := client.Dump(ctx, state).Result()
	if err != nil {
		t.Fatal(err)
	}
	first := q.Acquire(ctx, "a", time.Minute, []int{1})[1]
	if err := client.RestoreReplace(ctx, state, 0, before).Err(); err != nil {
		t.Fatal(err)
	}
	second := q.Acquire(ctx, "b", time.Minute, []int{1})[1]
	if !first.Value.Held || !second.Value.Held || first.Value.Epoch == second.Value.Epoch || min(first.Value.Epoch, second.Value.Epoch) <= last {
		t.Errorf("got %+v and %+v after epoch %d", first, second, last)
	}
}
