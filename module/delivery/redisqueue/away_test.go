package redisqueue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// A master that hangs delays its own users alone.
func TestAMasterThatIsAway(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	bounded := func(c *rediscommit.Config) { c.OperationTimeout = 2 * time.Second }
	q := newQueue(t, cluster.Client(t), bounded)
	if err := q.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	var users []mxid.UserID
	for n := range 60 {
		users = append(users, mxid.UserID(fmt.Sprintf("@user%d:x", n)))
	}
	parts := q.Partition(t.Context(), users)
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	add := func(n int, users []mxid.UserID) (errs int) {
		var additions []module.AppendRequest
		for _, user := range users {
			additions = append(additions, module.AppendRequest{
				User: user, Notification: note(n), Lease: lease, MaxUserBytes: 1000,
				Pushers: []module.Recipient{{Pusher: "p", Gate: gate}},
			})
		}
		for _, r := range q.Append(t.Context(), additions) {
			if r.Err != nil {
				errs++
			}
		}
		return errs
	}
	for _, part := range parts {
		if errs := add(1, part); errs > 0 {
			t.Fatalf("%d errors", errs)
		}
	}
	away := cluster.Masters()[0]
	away.Pause()
	defer away.Resume()

	var adding sync.WaitGroup
	failed, took := make([]int, len(parts)), make([]time.Duration, len(parts))
	for i, part := range parts {
		adding.Go(func() {
			began := time.Now()
			failed[i] = add(2, part)
			took[i] = time.Since(began)
		})
	}
	adding.Wait()
	lost := slices.IndexFunc(failed, func(n int) bool { return n > 0 })
	if lost < 0 {
		t.Fatal("no part is away")
	}
	for i, part := range parts {
		if isLost := i == lost; isLost && (failed[i] != len(part) || took[i] > 4*time.Second) || !isLost && (failed[i] > 0 || took[i] > time.Second) {
			t.Errorf("part %d: %d of %d failed after %v", i, failed[i], len(part), took[i])
		}
	}

	// A new client may ask the master that hangs for the others.
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true, ReadTimeout: 500 * time.Millisecond})
	t.Cleanup(func() { client.Close() })
	opened := newQueue(t, client, bounded)
	if err := opened.Open(t.Context()); err != nil {
		t.Errorf("a host does not start: %v", fault.Details(err))
	}
	seen := map[mxid.UserID]bool{}
	for n := range 4 {
		began := time.Now()
		looked, err := q.Look(t.Context(), module.Look{Limit: 1000, Lease: time.Minute, Gate: func(string) module.GateLimit { return module.GateLimit{Most: 1000, Failing: 10} }})
		if err != nil || time.Since(began) > time.Second {
			t.Errorf("look %d: %v after %v", n, err, time.Since(began))
		}
		if n > 0 && looked.Late == 0 {
			t.Errorf("look %d: nothing is late", n)
		}
		for _, u := range looked.Users {
			seen[u.User] = true
		}
	}
	for i, part := range parts {
		for _, user := range part {
			if seen[user] == (i == lost) {
				t.Errorf("part %d, %d is away: %s was seen: %t", i, lost, user, seen[user])
			}
		}
	}
	away.Resume()
	for deadline := time.Now().Add(20 * time.Second); len(seen) < len(users) && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		looked, _ := q.Look(t.Context(), module.Look{Limit: 1000, Lease: time.Minute, Gate: func(string) module.GateLimit { return module.GateLimit{Most: 1000, Failing: 10} }})
		for _, u := range looked.Users {
			seen[u.User] = true
		}
	}
	if len(seen) < len(users) {
		t.Errorf("after its return, %d of %d users were seen", len(seen), len(users))
	}
}

func TestTheFormatIsChecked(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	keys, ctx := stored.Keys{}, t.Context()
	for _, test := range []struct {
		format string
		says   string // "" if the queue is opened
	}{
		{"", ""},
		{"5 16", ""},
		{"5 8", "its index has 8 shards, not 16"},
		{"6 16", "another version"},
		{"4 16", "another version"},
	} {
		client.FlushAll(ctx)
		if test.format != "" {
			client.Set(ctx, keys.DeliveryFormat(), test.format, 0)
		}
		q := newQueue(t, client)
		looks := func() error {
			_, err := q.Look(ctx, module.Look{Limit: 1, Lease: lease, Gate: func(string) module.GateLimit { return module.GateLimit{Most: 1, Failing: 1} }})
			return err
		}
		for what, err := range map[string]error{"open": q.Open(ctx), "look": looks()} {
			isRight := err == nil
			if test.says == "another version" {
				isRight = fault.IsOtherVersion(err)
			} else if test.says != "" {
				isRight = strings.Contains(fmt.Sprint(err), test.says)
			}
			if !isRight {
				t.Errorf("%q, %s: got %v", test.format, what, err)
			}
		}
		want := test.format
		if test.says == "" {
			want = "5 16"
		}
		if got := client.Get(ctx, keys.DeliveryFormat()).Val(); got != want {
			t.Errorf("%q is now %q", test.format, got)
		}
	}
	// A running host restores a format that is gone, and sees another one.
	q := newQueue(t, client)
	client.FlushAll(ctx)
	if claims, err := (&host{T: t, Queue: q}).look("p"); len(claims) > 0 || err != nil || client.Get(ctx, keys.DeliveryFormat()).Val() != "5 16" {
		t.Errorf("got %v, %v", claims, err)
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h, ctx := newHost(t, client), t.Context()
	// Retry makes a pusher due that waits, and lists its user, who is missing in the index.
	for _, c := range h.mustAdd(alice, 1, "p", "q") {
		if err := h.Postpone(ctx, c, time.Hour, module.Trouble{Text: "x"}, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range client.Keys(ctx, "delivery:{0*").Val() {
		client.Del(ctx, key)
	}
	if n, err := h.Retry(ctx, alice, []module.PusherGate{{Pusher: "p", Gate: gate}}); n != 1 || err != nil {
		t.Errorf("%d waited, %v", n, err)
	}
	h.wantSent("after a retry", "p")
}

func TestSummaryOfAQueueThatIsRefused(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h := newHost(t, client)
	for n := range 1200 { // more than are read
		h.mustAdd(mxid.UserID(fmt.Sprintf("@%d:x", n)), 1, "p", "q")
	}
	for _, test := range []struct{ setting, bad, good, says string }{
		{"maxmemory", "0", "0", ""}, {"min-replicas-to-write", "1", "0", "NOREPLICAS"}, {"maxmemory", "1", "0", "OOM"},
	} {
		if err := client.ConfigSet(t.Context(), test.setting, test.bad).Err(); err != nil {
			t.Fatal(err)
		}
		s, err := h.Summary(context.WithoutCancel(t.Context()), func(string, module.Trouble) bool { return false })
		client.ConfigSet(t.Context(), test.setting, test.good)
		if err != nil || s.Gates[gate] != 1200 || s.Notifications < 2200 || s.Notifications > 2600 || s.Oldest <= 0 {
			t.Errorf("%s: got %+v, %v", test.setting, s, err)
		}
		if (s.Refused != nil) != (test.says != "") || s.Refused != nil && !strings.Contains(fault.Details(s.Refused), test.says) {
			t.Errorf("%s: refused: %v", test.setting, s.Refused)
		}
	}
}
