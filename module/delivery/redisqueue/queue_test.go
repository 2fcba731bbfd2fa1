package redisqueue_test

import (
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

func newQueue(t *testing.T, client redis.UniversalClient, change ...func(*rediscommit.Config)) *redisqueue.Queue {
	t.Helper()
	cfg := rediscommit.DefaultConfig()
	for _, c := range change {
		c(&cfg)
	}
	q, err := redisqueue.New(client, cfg, rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestContract(t *testing.T) {
	t.Parallel()
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue { return newQueue(t, server.Client(t)) })
	})
	t.Run("with a prefix", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			return newQueue(t, server.Client(t), func(c *rediscommit.Config) { c.KeyPrefix = "hs1:" })
		})
	})
	t.Run("cluster with replicas", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.Cluster(t, 3, 1)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			return newQueue(t, cluster.Client(t), func(c *rediscommit.Config) { c.Durability.Replicas = 1 })
		})
	})
	t.Run("behind proxies", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		queuetest.Queue(t, func(t *testing.T) module.DeliveryQueue {
			proxy := redistest.NewProxy(t, server)
			for n := range 100 {
				proxy.CutReply(4*(n+1), "EVALSHA").With("}:seen:")      // batches
				proxy.CutReply(3*(n+1), "EVALSHA").With("}:sent:")      // completions and drops
				proxy.CutReply(3*(n+1), "EVALSHA").With("\r\nkeep\r\n") // postponements
				proxy.CutReply(3*(n+1), "EVALSHA").With("\r\nset\r\n")
			}
			proxy.CutReply(3, "EVALSHA") // looks; a claim whose reply is lost must lapse
			return newQueue(t, proxy.Client(t))
		})
	})
}

func TestAQueueOfAnotherVersionIsNotOpened(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	for _, format := range []string{"2 8", "3 8", "5 8"} {
		if err := client.Set(t.Context(), "delivery:format", format, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := newQueue(t, client).Open(t.Context(), 8); !fault.IsOtherVersion(err) {
			t.Errorf("%s: %v", format, err)
		}
		if got := client.Get(t.Context(), "delivery:format").Val(); got != format {
			t.Errorf("%s is now %s", format, got)
		}
	}
}

// A key of another type costs its own pusher or gate, and not its shard: hosts put it aside,
// or do without it.
func TestAKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	const gate = "https://push.example.org:443 app"
	server := redistest.Single(t)
	client := server.Client(t)
	ctx, keys := t.Context(), stored.Keys{}
	for shard, test := range []struct {
		name      string
		key       func(shard int) string
		isAside   bool
		isWithout bool // texts
	}{
		{"a list", func(shard int) string { return keys.More(shard, "bad") }, false, false},
		{"texts", keys.ShardTexts, true, true},
		{"troubles", keys.ShardTrouble, true, false},
		{"bytes", keys.ShardBytes, false, false},
		{"gates", keys.ShardGates, true, false},
		{"a gate", func(shard int) string { return keys.Due(shard, gate) }, true, false},
		{"another gate", func(shard int) string { return keys.Due(shard, "bad") }, true, false},
		{"first notifications", keys.ShardFirst, true, false},
		{"the control", func(shard int) string { return keys.More(shard, "none") }, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := client.Set(ctx, test.key(shard), "x", 0).Err(); err != nil {
				t.Fatal(err)
			}
			q := openQueue(t, client)
			for n := range 3 { // the second and third have texts that count for the user
				b := module.DeliveryBatch{
					Shard: shard, Key: fmt.Sprint("event", n), Window: time.Minute, Lease: time.Minute, MaxBacklog: 10, MaxUserBytes: 1000,
				}
				for target, gate := range map[string]string{"bad": "bad", "good": gate} {
					b.Additions = append(b.Additions, module.Addition{Target: target, Gate: gate, User: "user0000", Notification: module.Notification{
						ID: fmt.Sprintf("%016d", n), Priority: module.HighPriority, Room: "room0000", Text: "text",
					}})
				}
				if e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]; e.Err != nil || e.Value.Again {
					t.Fatalf("got %+v", e)
				}
			}
			var claimed *module.Backlog
			for range 3 { // a trouble of another type is found by the first one
				found, err := q.Claim(ctx, anything(100))
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range found.Backlogs {
					if b.Claim.Target == (module.Target{Shard: shard, Name: "good"}) {
						claimed = &b
					}
				}
			}
			if claimed == nil {
				t.Fatal("the other pusher's backlog is not due")
			}
			if all, err := q.Read(ctx, claimed.Claim, 10); err != nil || len(all) != 3 || all[2].Text != "text" || !test.isWithout && all[0].Text != "text" {
				t.Errorf("got %v, %v", all, err)
			}
			trouble := module.Trouble{Generation: 1, Text: "x"}
			if left, err := q.Complete(ctx, claimed.Claim, fmt.Sprintf("%016d", 0), trouble, ""); err != nil || left != 2 {
				t.Errorf("%d are left, %v", left, err)
			}
			if err := q.Postpone(ctx, claimed.Claim, gate, time.Hour, &trouble); err != nil {
				t.Error(err)
			}
			aside := client.Keys(ctx, keys.Aside(shard, "*")).Val()
			if isAside := len(aside) == 1 && client.Get(ctx, aside[0]).Val() == "x"; isAside != test.isAside {
				t.Errorf("put aside: %v, want %v", aside, test.isAside)
			}
		})
	}
}

// A batch that fails has added nothing that a repetition would add again, nor has one
// whose last notification is dropped at once left its text.
func TestABatchLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	ctx, keys, q := t.Context(), stored.Keys{}, openQueue(t, client)
	batch := func(shard, n int, gates ...string) module.DeliveryBatch {
		b := module.DeliveryBatch{
			Shard: shard, Key: fmt.Sprint("event", n), Window: time.Minute, Lease: time.Minute, MaxBacklog: 10, MaxUserBytes: 1000,
		}
		for _, gate := range gates {
			b.Additions = append(b.Additions, module.Addition{Target: "to-" + gate, Gate: gate, User: "user0000", Notification: module.Notification{
				ID: fmt.Sprintf("%016d", n), Priority: module.HighPriority, Room: "room0000", Text: "text",
			}})
		}
		return b
	}
	add := func(b module.DeliveryBatch) error { return q.Enqueue(ctx, []module.DeliveryBatch{b})[0].Err }
	for shard, bad := range []func(shard int) string{
		keys.ShardGates, keys.ShardTexts, func(shard int) string { return keys.Due(shard, "z") }, keys.ShardTrouble,
	} {
		for n := range 2 {
			if err := add(batch(shard, n, "a")); err != nil {
				t.Fatal(err)
			}
		}
		fanOut := batch(shard, 3, module.FanOut)
		fanOut.MaxRoomBytes, fanOut.MaxShardBytes = 1000, 1000
		fanOut.Additions[0].Target, fanOut.Additions[0].User, fanOut.Additions[0].Claim = module.FanOut+"room0000", "room0000", true
		large := q.Enqueue(ctx, []module.DeliveryBatch{fanOut})[0]
		if large.Err != nil || large.Value.Claims[0].Token == 0 {
			t.Fatalf("got %+v", large)
		}
		client.Set(ctx, bad(shard), "x", 0)
		client.Do(ctx, "ACL", "SETUSER", "default", "-rename") // so it cannot be put aside
		failing := batch(shard, 2, "a", "z")
		if bad(shard) == keys.ShardTrouble(shard) {
			failing.Of, failing.To = large.Value.Claims[0], 1
		}
		for range 2 {
			if err := add(failing); err == nil || errors.Is(err, module.ErrFenced) {
				t.Fatalf("%s: got %v", bad(shard), err)
			}
		}
		if got := client.LLen(ctx, keys.More(shard, "to-a")).Val(); got != 1 {
			t.Errorf("%s: %d notifications behind the first", bad(shard), got)
		}
		if got := client.HGet(ctx, keys.ShardBytes(shard), "user0000").Val(); got != "4" {
			t.Errorf("%s: %s bytes are counted", bad(shard), got)
		}
		client.Do(ctx, "ACL", "SETUSER", "default", "+rename")
		if err := add(failing); err != nil {
			t.Error(err)
		}
	}

	// Redis may also refuse a command after the notification is in its list.
	const refused, shard = 9, 10
	for n := range 3 {
		if n == 2 {
			client.Do(ctx, "ACL", "SETUSER", "default", "-set")
		}
		if err := add(batch(refused, n, "a")); (err == nil) != (n < 2) {
			t.Fatalf("%d: got %v", n, err)
		}
	}
	client.Do(ctx, "ACL", "SETUSER", "default", "+set")
	if err := add(batch(refused, 2, "a")); err != nil {
		t.Error(err)
	}
	if n, bytes := client.LLen(ctx, keys.More(refused, "to-a")).Val(), client.HGet(ctx, keys.ShardBytes(refused), "user0000").Val(); n != 2 || bytes != "8" {
		t.Errorf("%d notifications behind the first, %s bytes", n, bytes)
	}

	for n := range 12 {
		if err := add(batch(shard, n, "a")); err != nil {
			t.Fatal(err)
		}
	}
	b := batch(shard, 12, "a")
	b.Additions[0].Notification.Priority = module.LowPriority
	if e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]; e.Err != nil || e.Value.Coalesced == 0 {
		t.Fatalf("got %+v", e)
	}
	left := 1 + client.LLen(ctx, keys.More(shard, "to-a")).Val()
	if texts := client.HLen(ctx, keys.ShardTexts(shard)).Val(); texts != left || client.HExists(ctx, keys.ShardTexts(shard), "to-a0000000000000012").Val() {
		t.Errorf("%d texts of %d notifications", texts, left)
	}
}

// A damaged count costs nothing, a damaged position begins its large event again.
func TestADamagedNumber(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	ctx, keys, q := t.Context(), stored.Keys{}, openQueue(t, client)
	for shard, damage := range []string{"x", "1.5", "1e99", "9223372036854775807", ""} {
		batch := func(n int, target, gate, user string) module.DeliveryBatch {
			return module.DeliveryBatch{
				Shard: shard, Key: fmt.Sprint(target, n), Window: time.Minute, Lease: time.Minute, MaxBacklog: 10, MaxUserBytes: 1000,
				MaxRoomBytes: 1000, MaxShardBytes: 1000,
				Additions: []module.Addition{{Target: target, Gate: gate, User: user, Claim: true, Notification: module.Notification{
					ID: fmt.Sprintf("%016d", n), Priority: module.HighPriority, Room: "room0000", Text: "text",
				}}},
			}
		}
		add := func(b module.DeliveryBatch) module.Claim {
			t.Helper()
			e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]
			if e.Err != nil || len(e.Value.Claims) != 1 {
				t.Fatalf("%q: got %+v", damage, e)
			}
			return e.Value.Claims[0]
		}
		if err := client.HSet(ctx, keys.ShardBytes(shard), "user0000", damage).Err(); err != nil {
			t.Fatal(err)
		}
		c := add(batch(0, "target", "gate", "user0000"))
		for n := range 3 {
			add(batch(n+1, "target", "gate", "user0000"))
		}
		large := add(batch(0, module.FanOut+"room0000", module.FanOut, "room0000"))
		client.HSet(ctx, keys.ShardTrouble(shard), large.Target.Name, damage)
		part := batch(5, "other", "gate", "user0000")
		part.Of, part.To = large, 1
		add(part)
		if damage != "9223372036854775807" { // or it is a number
			client.HSet(ctx, keys.ShardBytes(shard), "room0000", damage, stored.FanOutBytes, damage, stored.FanOutEntries, damage)
		}
		for n, c := range []module.Claim{c, c, c, c, large} {
			if _, err := q.Complete(ctx, c, fmt.Sprintf("%016d", n%4), module.Trouble{}, ""); err != nil {
				t.Errorf("%q: %v", damage, err)
			}
		}
		if left := client.HGetAll(ctx, keys.ShardBytes(shard)).Val(); len(left) > 0 {
			t.Errorf("%q: counted: %v", damage, left)
		}
	}
}

// Batches and texts above their bounds are refused before Redis.
func TestBatchesAndTextsThatAreTooLargeAreRefused(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q := openQueue(t, client)
	b := module.DeliveryBatch{Key: "event", Window: time.Minute, MaxBacklog: 10, MaxUserBytes: 1 << 30}
	for n := range module.MaxAdditions + 1 {
		b.Additions = append(b.Additions, module.Addition{Target: fmt.Sprint("t", n), Gate: "gate", User: "user0000", Notification: module.Notification{
			ID: "0000000000000000", Priority: module.HighPriority, Room: "room0000",
		}})
	}
	other := b
	other.Additions = slices.Clone(b.Additions[:1])
	other.Additions[0].Notification.Text = strings.Repeat("x", module.MaxText+1)
	results := q.Enqueue(t.Context(), []module.DeliveryBatch{b, other})
	if results[0].Err == nil || fault.KindOf(results[1].Err) != fault.InvalidParam {
		t.Errorf("got %v, %v", results[0].Err, results[1].Err)
	}
	if n := client.DBSize(t.Context()).Val(); n != 1 { // the format
		t.Errorf("%d keys", n)
	}
}

// A look claims some of any number of backlogs, and the next ones claim the rest.
func TestManyBacklogsOfAGateAreClaimed(t *testing.T) {
	t.Parallel()
	q := openQueue(t, redistest.Single(t).Client(t))
	const parts = 10
	for part := range parts {
		b := module.DeliveryBatch{Key: fmt.Sprint(part), Window: time.Minute, MaxBacklog: 10}
		for n := range module.MaxAdditions {
			b.Additions = append(b.Additions, module.Addition{
				Target: fmt.Sprint("t", part, "-", n), Gate: "gate", User: "user0000",
				Notification: module.Notification{ID: "0000000000000000", Priority: module.HighPriority, Room: "room0000"},
			})
		}
		if e := q.Enqueue(t.Context(), []module.DeliveryBatch{b})[0]; e.Err != nil {
			t.Fatal(e.Err)
		}
	}
	claimed := 0
	for more := true; more; {
		found, err := q.Claim(t.Context(), anything(1<<16))
		if err != nil {
			t.Fatal(err)
		}
		claimed += len(found.Backlogs)
		more = len(found.More) > 0
	}
	if claimed != parts*module.MaxAdditions {
		t.Errorf("%d are claimed", claimed)
	}
}

// A key that is overwritten while backlogs wait loses none that it does not hold. A request
// that finds it does not wait until all are listed again.
func TestBacklogsAreListedAgain(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	ctx, keys := t.Context(), stored.Keys{}
	for shard, key := range []func(shard int) string{keys.ShardGates, func(shard int) string { return keys.Due(shard, "gate1") }} {
		q := openQueue(t, client)
		const backlogs = 1000
		b := module.DeliveryBatch{Shard: shard, Key: "event", Window: time.Minute, MaxBacklog: 10}
		for n := range backlogs {
			b.Additions = append(b.Additions, module.Addition{
				Target: fmt.Sprint("t", n), Gate: fmt.Sprint("gate", n%2), User: "user0000",
				Notification: module.Notification{ID: fmt.Sprintf("%016d", n), Priority: module.HighPriority, Room: "room0000"},
			})
		}
		if e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]; e.Err != nil {
			t.Fatal(e.Err)
		}
		client.Set(ctx, key(shard), "x", 0)
		client.ConfigResetStat(ctx)
		b.Key, b.Additions = "another", b.Additions[:2]
		b.Additions[0].Target, b.Additions[1].Target = "more0", "more1"
		if e := q.Enqueue(ctx, []module.DeliveryBatch{b})[0]; e.Err != nil {
			t.Fatal(e.Err)
		}
		if n := commands(t, client, "evalsha") + commands(t, client, "eval"); n > 5 {
			t.Errorf("%s: a request made %d scripts", key(shard), n)
		}
		seen := map[string]bool{}
		for range 50 {
			claimed, err := q.Claim(ctx, anything(100))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range claimed.Backlogs {
				if c.Claim.Target.Shard == shard && seen[c.Claim.Target.Name] {
					t.Fatalf("%s was claimed twice", c.Claim.Target.Name)
				}
				seen[c.Claim.Target.Name] = true
			}
		}
		if len(seen) != backlogs+2 {
			t.Errorf("%s: %d of %d are claimed", key(shard), len(seen), backlogs+2)
		}
	}
}

// commands returns how often Redis has run a command.
func commands(t *testing.T, client redis.UniversalClient, name string) (n int) {
	t.Helper()
	_, stats, _ := strings.Cut(client.Info(t.Context(), "commandstats").Val(), "cmdstat_"+name+":calls=")
	_, _ = fmt.Sscanf(stats, "%d", &n)
	return n
}

// anything may be claimed.
func anything(limit int) module.Look {
	return module.Look{Limit: limit, Lease: time.Minute, Gate: func(string) (int, bool) { return limit, false }}
}
