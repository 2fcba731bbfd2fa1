package redisqueue_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// A pusher that waits for an hour is not looked at because of later notifications, and each of
// them lists its user once.
func TestAnAppendToAPusherThatWaitsListsOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, redistest.Single(t).Client(t))
	claim := h.mustAdd(alice, 1, "p")[0]
	if err := h.Postpone(t.Context(), claim, time.Hour, module.Trouble{Text: "x"}, true); err != nil {
		t.Fatal(err)
	}
	listings := 0
	h.after = func(cmd redis.Cmder) error {
		if isOfIndex(cmd) {
			listings++
		}
		return nil
	}
	look := func() (users int) {
		looked, err := h.Look(t.Context(), module.Look{Limit: 100, Lease: lease, Gate: func(string) module.GateLimit { return module.GateLimit{Most: 100, Failing: 100} }})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range looked.Users {
			r := h.Claim(t.Context(), []module.ClaimRequest{{
				DueUser: u, Lease: lease, Limit: 1, Read: 1, Pushers: []module.PusherGate{{Pusher: "p", Gate: gate}},
			}})[0]
			if r.Err != nil || len(r.Value.Pushers) > 0 {
				t.Fatalf("got %+v", r)
			}
		}
		return len(looked.Users)
	}
	time.Sleep(2 * lease) // the listing of the claim
	for look() > 0 {
	}
	for n := range 5 {
		listings = 0
		a := module.AppendRequest{User: alice, Notification: note(n + 2), Lease: lease, MaxUserBytes: 1 << 18}
		a.Pushers = []module.Recipient{{Pusher: "p", Gate: gate, Claim: n > 1}} // the gate opens
		if r := h.Append(t.Context(), []module.AppendRequest{a})[0]; r.Err != nil || r.Value.Claims[0] != nil {
			t.Fatalf("got %+v", r)
		}
		if listings != 1 {
			t.Errorf("%d: the user was listed %d times", n, listings)
		}
	}
	time.Sleep(2 * lease)
	if n := look(); n > 0 {
		t.Error("a look finds a pusher that waits")
	}
}

// A user has one entry at a gate, however the calls that list it are put together: each further one makes a look claim
// in vain. Failed requests that end at once share the scripts that list their users.
func TestAUserIsListedOnceAtAGate(t *testing.T) {
	t.Parallel()
	h := newHost(t, redistest.Single(t).Client(t))
	users := make([]mxid.UserID, 40)
	for i := range users {
		users[i] = mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
	}
	add := func(n int, users []mxid.UserID) (claims []*module.Claim) {
		var all []module.AppendRequest
		for _, user := range users {
			all = append(all, module.AppendRequest{
				User: user, Notification: note(n), Lease: time.Hour, MaxUserBytes: 1 << 18, MaxClaims: 1, Pushers: []module.Recipient{{Pusher: "p", Gate: gate, Claim: true}},
			})
		}
		for _, r := range h.Append(t.Context(), all) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			claims = append(claims, r.Value.Claims...)
		}
		return claims
	}
	claims := add(1, users)
	var listings atomic.Int32
	h.after = func(cmd redis.Cmder) error {
		if isOfIndex(cmd) {
			listings.Add(1)
		}
		return nil
	}
	var failing sync.WaitGroup
	for _, c := range claims {
		failing.Go(func() {
			if err := h.Postpone(t.Context(), c, time.Minute, module.Trouble{Text: "x"}, false); err != nil {
				t.Error(err)
			}
		})
	}
	failing.Wait()
	if n := listings.Load(); n >= int32(len(users)) {
		t.Errorf("%d scripts list %d users", n, len(users))
	}
	add(2, users[1:])
	add(3, users[:20])
	if at, entries, err := h.Index.Listed(t.Context(), gate, users); err != nil || len(at) != len(users) || entries != len(users) {
		t.Errorf("%d users have %d entries, %v", len(at), entries, err)
	}
}
