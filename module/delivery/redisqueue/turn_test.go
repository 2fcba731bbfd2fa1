package redisqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// Of the users whom a look returns, a host claims for the first one at a closed gate, and gives the others back. Each user
// is the first one sometime, whatever the name.
func TestUsersWhoAreGivenBackKeepTheirOrder(t *testing.T) {
	t.Parallel()
	q := newQueue(t, redistest.Single(t).Client(t))
	q.Index.Shards = 1
	ctx := t.Context()
	if err := q.Open(ctx); err != nil {
		t.Fatal(err)
	}
	const users, gate = 8, "gw app"
	pushers := []module.PusherGate{{Pusher: "p", Gate: gate}}
	for n := range users {
		a := module.AppendRequest{User: mxid.UserID(fmt.Sprintf("@%d:h", n)), Notification: module.Notification{ID: "$1"}, Pushers: []module.Recipient{{Pusher: "p", Gate: gate}}}
		if err := q.Append(ctx, []module.AppendRequest{a})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	chosen := map[mxid.UserID]int{}
	for range 4 * users {
		found, err := q.Look(ctx, module.Look{Limit: users / 2, Lease: time.Minute, Gate: func(string) module.GateLimit { return module.GateLimit{Most: users / 2} }})
		if err != nil {
			t.Fatal(err)
		}
		requests := make([]module.ClaimRequest, len(found.Users))
		for i, u := range found.Users {
			requests[i] = module.ClaimRequest{DueUser: u, Lease: time.Minute, Pushers: pushers}
		}
		requests[0].Limit = 1
		for _, p := range q.Claim(ctx, requests)[0].Value.Pushers {
			chosen[p.Claim.User]++
			if err := q.Postpone(ctx, p.Claim, 0, module.Trouble{}, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(chosen) < users {
		t.Errorf("%d of %d users were chosen: %v", len(chosen), users, chosen)
	}
}
