package redisqueue_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// appendOnly adds a notification, and completes it at once.
func appendOnly(t *testing.T, q *redisqueue.Queue, user mxid.UserID, n int) (module.Appended, error) {
	t.Helper()
	a := module.Addition{User: user, Notification: note(n), Lease: time.Minute, MaxUserBytes: 1 << 18}
	a.Pushers = []module.Recipient{{Pusher: "p", Gate: gate, Claim: true}}
	r := q.Append(t.Context(), []module.Addition{a})[0]
	for _, c := range r.Value.Claims {
		if c != nil {
			if _, err := q.Complete(t.Context(), c, module.Done{To: r.Value.End}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return r.Value, r.Err
}

// What replicas have not confirmed is known however many notifications follow, also when the log is empty, until it is
// confirmed.
func TestWhatIsNotConfirmedIsKnown(t *testing.T) {
	t.Parallel()
	pair := redistest.Replicated(t, 1, "--repl-diskless-sync", "no")
	client := pair.Master().Client(t)
	q := newQueue(t, client, func(c *rediscommit.Config) { c.Durability.Replicas, c.Durability.Timeout = 1, 20*time.Millisecond })
	confirmed := newQueue(t, client) // waits for nothing
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err := appendOnly(t, q, alice, 0); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(fault.Details(err))
		}
	}
	pair.Replicas()[0].Pause()
	defer pair.Replicas()[0].Resume()
	const unconfirmed = 5
	for n := range unconfirmed {
		done, err := appendOnly(t, q, alice, n+1)
		if !errors.Is(err, fault.ErrNotConfirmed) || fault.KindOf(err) != fault.Unavailable || done.Again || done.Claims[0] == nil {
			t.Fatalf("got %+v, %v", done, err)
		}
	}
	for n := range 3 * module.RepeatsKept {
		if _, err := appendOnly(t, confirmed, alice, n+100); err != nil {
			t.Fatal(err)
		}
	}
	again := func(n int, isNew bool) (isConfirmed bool) {
		t.Helper()
		done, err := appendOnly(t, q, alice, n+1)
		if done.Again == isNew || isNew == (done.Claims[0] == nil) {
			t.Errorf("%d: got %+v", n, done)
		}
		if err != nil && !errors.Is(err, fault.ErrNotConfirmed) {
			t.Error(fault.Details(err))
		}
		return err == nil
	}
	for n := range unconfirmed {
		if again(n, false) {
			t.Errorf("%d is confirmed", n)
		}
	}
	key := stored.Keys{}.UserLog(alice)
	if ttl := client.TTL(t.Context(), key).Val(); ttl < 23*time.Hour {
		t.Errorf("the empty log lasts %v", ttl)
	}
	pair.Replicas()[0].Resume()
	for n := range unconfirmed {
		for deadline := time.Now().Add(20 * time.Second); !again(n, false); {
			if time.Now().After(deadline) {
				t.Fatal("it is not confirmed")
			}
		}
	}
	if text, ttl := client.HGet(t.Context(), key, stored.UnconfirmedField).Val(), client.TTL(t.Context(), key).Val(); text != "" || ttl > module.RepeatsKeptFor {
		t.Errorf("left is %q for %v", text, ttl)
	}
	again(0, true) // as any notification of long ago
}

// A user with a thousand notifications without confirmation gets no more: they could not be told from repetitions.
func TestTooManyNotConfirmed(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q := newQueue(t, client)
	if _, err := appendOnly(t, q, alice, 1); err != nil {
		t.Fatal(err)
	}
	var ids strings.Builder
	for range 1000 {
		ids.WriteString(",abcdefgh")
	}
	client.HSet(t.Context(), stored.Keys{}.UserLog(alice), stored.UnconfirmedField, ids.String())
	if _, err := appendOnly(t, q, alice, 2); fault.KindOf(err) != fault.Unavailable || !strings.Contains(fault.Details(err), "not confirmed") {
		t.Errorf("got %v", fault.Details(err))
	}
	if done, err := appendOnly(t, q, alice, 1); err != nil || !done.Again {
		t.Errorf("a repetition: got %+v, %v", done, err)
	}
}

// A log of another type costs its user alone, whom no look finds again.
func TestALogOfAnotherType(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h := newHost(t, client)
	client.Set(t.Context(), stored.Keys{}.UserLog(alice), "x", 0)
	const bob = "@bob:x"
	var additions []module.Addition
	for _, user := range []mxid.UserID{alice, bob} {
		additions = append(additions, module.Addition{User: user, Notification: note(1), Lease: time.Millisecond, MaxUserBytes: 1000, Pushers: []module.Recipient{{Pusher: "p", Gate: gate, Claim: true}}})
	}
	results := h.Append(t.Context(), additions)
	if fault.KindOf(results[0].Err) != fault.Database || results[1].Err != nil {
		t.Errorf("got %v and %v", fault.Details(results[0].Err), results[1].Err)
	}
	found := 0
	for deadline := time.Now().Add(20 * time.Second); found == 0 && time.Now().Before(deadline); {
		looked, err := h.Look(t.Context(), module.Look{Limit: 100, Lease: time.Millisecond, Gate: func(string) (int, int, bool) { return 100, 10, false }})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range looked.Users {
			if u.User != alice {
				continue
			}
			found++
			r := h.Claim(t.Context(), []module.ClaimRequest{{DueUser: u, Pushers: []module.PusherGate{{Pusher: "p", Gate: gate}}, Lease: lease, Limit: 1, Read: 1}})[0]
			if fault.KindOf(r.Err) != fault.Database {
				t.Errorf("got %v", r.Err)
			}
		}
	}
	// The call lists the user beside its append. The claim of a look removes the listing.
	left := int64(0)
	for shard := range h.Index.Shards {
		left += client.ZCard(t.Context(), stored.Keys{}.ShardDue(shard, gate)).Val()
	}
	if found != 1 || left != 1 { // bob
		t.Errorf("a look found the user %d times, %d are listed", found, left)
	}
}
