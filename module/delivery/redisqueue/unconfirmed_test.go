package redisqueue_test

import (
	"errors"
	"strings"
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

// A notification that replicas do not confirm is added, and leaves no trace. What a development version has noted of them
// changes nothing.
func TestWhatIsNotConfirmedIsAdded(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q := newQueue(t, client, func(c *rediscommit.Config) { c.Durability.Replicas, c.Durability.Timeout = 1, time.Millisecond })
	key, noted := stored.Keys{}.UserLog(alice), strings.Repeat(",00000001", 1000)
	a := module.AppendRequest{User: alice, Lease: time.Minute, MaxUserBytes: 1 << 18, MaxClaims: 1, Pushers: []module.Recipient{{Pusher: "p", Gate: gate, Claim: true}}}
	for n := range 3 {
		client.HSet(t.Context(), key, "#unconfirmed", noted)
		for _, again := range []bool{false, true} {
			a.Notification = note(n)
			r := q.Append(t.Context(), []module.AppendRequest{a})[0]
			if !errors.Is(r.Err, fault.ErrNotConfirmed) || r.Value.Again != again || again != (r.Value.Claims[0] == nil) {
				t.Fatalf("%d: got %+v, %v", n, r.Value, r.Err)
			}
			if again {
				continue
			}
			if _, err := q.Complete(t.Context(), r.Value.Claims[0], module.Done{To: r.Value.End}); err != nil {
				t.Fatal(err)
			}
			if ttl := client.TTL(t.Context(), key).Val(); ttl <= 0 || ttl > module.RepeatsKeptFor {
				t.Errorf("the empty log lasts %v", ttl)
			}
			if fields := client.HKeys(t.Context(), key).Val(); len(fields) != 2 {
				t.Errorf("left are %v", fields)
			}
		}
	}
}

// A log that cannot be read costs its user alone, whom no look finds again.
func TestALogThatCannotBeRead(t *testing.T) {
	t.Parallel()
	key := stored.Keys{}.UserLog(alice)
	for name, damage := range map[string]func(*host, *redis.Client){
		"another type": func(h *host, client *redis.Client) { client.Set(h.Context(), key, "x", 0) },
		"a pusher": func(h *host, client *redis.Client) {
			h.mustAdd(alice, 0, "p")
			client.HSet(h.Context(), key, "p", "damaged")
		},
		"the head": func(h *host, client *redis.Client) { client.HSet(h.Context(), key, stored.LogField, "damaged") },
	} {
		t.Run(name, func(t *testing.T) {
			client := redistest.Single(t).Client(t)
			h := newHost(t, client)
			damage(h, client)
			h.wantNothingOfAlice(client)
		})
	}
}

func (h *host) wantNothingOfAlice(client *redis.Client) {
	h.Helper()
	const bob = "@bob:x"
	var additions []module.AppendRequest
	for _, user := range []mxid.UserID{alice, bob} {
		additions = append(additions, module.AppendRequest{
			User: user, Notification: note(1), Lease: time.Millisecond, MaxUserBytes: 1000, MaxClaims: 1, Pushers: []module.Recipient{{Pusher: "p", Gate: gate, Claim: true}},
		})
	}
	results := h.Append(h.Context(), additions)
	if fault.KindOf(results[0].Err) != fault.Database || results[1].Err != nil {
		h.Errorf("got %v and %v", fault.Details(results[0].Err), results[1].Err)
	}
	found := 0
	for deadline := time.Now().Add(20 * time.Second); found == 0 && time.Now().Before(deadline); {
		looked, err := h.Look(h.Context(), module.Look{Limit: 100, Lease: time.Millisecond, Gate: func(string) module.GateLimit { return module.GateLimit{Most: 100, Failing: 10} }})
		if err != nil {
			h.Fatal(err)
		}
		for _, u := range looked.Users {
			if u.User != alice {
				continue
			}
			found++
			r := h.Claim(h.Context(), []module.ClaimRequest{{DueUser: u, Pushers: []module.PusherGate{{Pusher: "p", Gate: gate}}, Lease: lease, Limit: 1, Read: 1}})[0]
			if fault.KindOf(r.Err) != fault.Database {
				h.Errorf("got %v", r.Err)
			}
		}
	}
	// The call lists the user beside its append. The claim of a look removes the listing.
	left := int64(0)
	for shard := range h.Index.Shards {
		left += client.ZCard(h.Context(), stored.Keys{}.ShardDue(shard, gate)).Val()
	}
	if found != 1 || left != 1 { // bob
		h.Errorf("a look found the user %d times, %d are listed", found, left)
	}
}
