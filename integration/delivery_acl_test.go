package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
)

// deliveryACL is the heading above the rights that delivery adds to the service's own.
const deliveryACL = "### ACL: more for `pushfx.Delivery`"

// removalsWait is longer than the queue collects removals from its index.
const removalsWait = 500 * time.Millisecond

// deliver calls every operation of the queue as the Redis user of a line. It returns the errors, and the commands
// that the servers refused.
func (g *guardedServers) deliver(l aclLine, prefix string) (trouble []string) {
	g.t.Helper()
	g.apply(l)
	g.reset()
	client := g.login(l.user)
	defer client.Close()
	ctx, cancel := context.WithTimeout(g.t.Context(), 4*stepTimeout)
	defer cancel()
	if err := useQueue(ctx, client, prefix); err != nil {
		trouble = append(trouble, err.Error())
	}
	return append(trouble, g.denied(l.user)...)
}

// useQueue calls every method of a queue that hosts call, so that it sends every script and command.
func useQueue(ctx context.Context, client redis.UniversalClient, prefix string) error {
	cfg := rediscommit.DefaultConfig()
	cfg.KeyPrefix, cfg.OperationTimeout = prefix, stepTimeout
	q, err := redisqueue.New(client, cfg, rediscommit.Options{})
	if err != nil {
		return err
	}
	const gate = "gate"
	number := 0
	add := func(user mxid.UserID, claims bool, pushers ...string) (claimed []*module.Claim, err error) {
		number++
		a := module.Addition{
			User: user, Lease: time.Minute, MaxUserBytes: 100,
			Notification: module.Notification{ID: fmt.Sprintf("%08d", number), Priority: module.LowPriority, Room: "room0000", Meta: "{}", Text: "text"},
		}
		for _, name := range pushers {
			a.Pushers = append(a.Pushers, module.Recipient{Pusher: name, Gate: gate, Claim: claims})
		}
		result := q.Append(ctx, []module.Addition{a})[0]
		return result.Value.Claims, result.Err
	}
	failures := []error{q.Open(ctx)}
	check := func(errs ...error) { failures = append(failures, errs...) }

	// A log that two pushers send, and that grows again after its end.
	for range 2 {
		two, err := add("@two:x", true, "a", "b")
		if err != nil {
			return err
		}
		_, err = add("@two:x", true, "a", "b")
		check(err, q.Renew(ctx, two[0], time.Minute, true))
		for _, c := range two {
			_, end, err := q.Read(ctx, c, 10)
			check(err)
			for to := c.Number + 1; to <= end; to++ {
				_, err := q.Complete(ctx, c, module.Done{To: to, Answered: true, Sent: "sent"})
				check(err)
			}
		}
	}
	_, err = q.Sent(ctx, "@two:x", "a")
	check(err)

	// A log that waits, which a look finds and which is cut and forgotten.
	one, err := add("@one:x", true, "a")
	if err != nil {
		return err
	}
	for range 3 {
		_, err := add("@one:x", true, "a")
		check(err)
	}
	check(q.Postpone(ctx, one[0], 0, module.Trouble{Generation: 1, Text: "x"}, true))
	var looked module.Looked
	for deadline := time.Now().Add(stepTimeout); len(looked.Users) == 0 && time.Now().Before(deadline); {
		looked, err = q.Look(ctx, module.Look{Limit: 10, Lease: time.Minute, Gate: func(string) (int, int, bool) { return 10, 10, false }})
		check(err)
	}
	if len(looked.Users) == 0 {
		return errors.Join(append(failures, errors.New("no look has found the user"))...)
	}
	claimed := q.Claim(ctx, []module.ClaimRequest{{
		DueUser: looked.Users[0], Pushers: []module.PusherGate{{Pusher: "a", Gate: gate}}, Lease: time.Minute, Limit: 4, Read: 2,
	}})[0]
	log, err := q.Log(ctx, "@one:x")
	check(claimed.Err, err)
	if len(claimed.Value.Pushers) == 0 || len(log.Notifications) == 0 {
		return errors.Join(append(failures, errors.New("nothing waits"))...)
	}
	check(q.Cut(ctx, "@one:x", []int64{log.Notifications[0].Number}))
	_, held := q.HeldGateways(ctx)
	waits, summary := q.Summary(ctx, func(module.Trouble) bool { return false })
	check(held, summary, waits.Refused, q.Forget(ctx, "@one:x"))
	time.Sleep(removalsWait)
	return errors.Join(failures...)
}

func TestTheACLOfThePageIsEnoughForDelivery(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedServers) {
		more := aclLineBelow(t, deliveryACL)
		line := g.line().with(more)
		for _, prefix := range []string{"", examplePrefix} {
			for _, trouble := range g.deliver(line.withPrefix(prefix), prefix) {
				t.Errorf("with the rights of the page and the prefix %q: %s", prefix, trouble)
			}
		}
		g.wantUsed(more)
	})
}
