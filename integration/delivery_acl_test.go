package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/stored"
)

// deliveryACL is the heading above the rights that delivery adds to the service's own.
const deliveryACL = "### ACL: more for `pushfx.Delivery`"

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

// useQueue calls every method of a queue, so that it sends every script and command.
func useQueue(ctx context.Context, client redis.UniversalClient, prefix string) error {
	cfg := rediscommit.DefaultConfig()
	cfg.KeyPrefix, cfg.OperationTimeout = prefix, stepTimeout
	q, err := redisqueue.New(client, cfg, rediscommit.Options{})
	if err != nil {
		return err
	}
	if err := q.Open(ctx, 8); err != nil {
		return err
	}
	const fanOut = module.FanOut + "room0000"
	user := 0
	add := func(key, target string, n int) error {
		var failures []error
		for range n {
			user++
			gate := fmt.Sprint("gate", user%2)
			if target == fanOut {
				gate = module.FanOut
			}
			note := module.Notification{
				ID: fmt.Sprintf("%016d", user), Priority: module.LowPriority, Room: "room0000", Meta: "{}", Text: strings.Repeat("x", 10),
			}
			batch := module.DeliveryBatch{
				Shard: 1, Key: fmt.Sprint(key, user), Window: time.Minute, MaxBacklog: 10, MaxUserBytes: 50, MaxRoomBytes: 100, MaxShardBytes: 100,
				Additions: []module.Addition{{Target: target, Gate: gate, User: "user0000", Notification: note, Generation: int64(user), Urgent: true}},
			}
			for range 2 { // the second call repeats the first, as after a lost answer
				failures = append(failures, q.Enqueue(ctx, []module.DeliveryBatch{batch})[0].Err)
			}
		}
		return errors.Join(failures...)
	}
	alone := module.Notification{ID: fmt.Sprintf("%016d", 0), Priority: module.CountsOnly, Room: "--------"}
	counts := module.DeliveryBatch{
		Shard: 1, Key: "counts", Window: time.Minute, MaxBacklog: 10, MaxUserBytes: 50,
		Additions: []module.Addition{{Target: "f", Gate: "gate0", User: "user0000", Notification: alone}},
	}
	more := counts
	more.Key, more.Additions = "more counts", []module.Addition{{Target: "a", Gate: "gate0", User: "user0000", Notification: alone}}
	failures := []error{
		add("a", "a", 20), q.Enqueue(ctx, []module.DeliveryBatch{more})[0].Err, add("a later", "a", 1), add("b", "b", 1), add("c", "c", 2), add("d", "d", 1),
		q.Enqueue(ctx, []module.DeliveryBatch{counts})[0].Err, add("f", "f", 1), add("fanout", fanOut, 1),
	}
	claims := map[string]module.Claim{}
	look := module.Look{Limit: 10, Lease: time.Minute, Gate: func(string) (int, bool) { return 10, false }}
	for range 2 {
		claimed, err := q.Claim(ctx, look)
		failures = append(failures, err)
		for _, b := range claimed.Backlogs {
			claims[b.Claim.Target.Name] = b.Claim
		}
	}
	trouble := module.Trouble{Generation: 1, Text: "x"}
	part := counts
	part.Of, part.To, part.Additions[0].Target = claims[fanOut], 1, "g"
	failures = append(failures, q.Enqueue(ctx, []module.DeliveryBatch{part})[0].Err)
	_, err = q.Read(ctx, claims["a"], 10)
	_, completed := q.Complete(ctx, claims["a"], fmt.Sprintf("%016d", 1), trouble, "") // the first of several
	renewed, renewal := q.Renew(ctx, claims["a"], time.Second)
	_, last := q.Complete(ctx, claims["b"], fmt.Sprintf("%016d", 22), module.Trouble{}, "sent")
	_, dropped := q.Drop(ctx, claims["c"])
	_, held := q.HeldGateways(ctx)
	waits, summary := q.Summary(ctx, func(module.Trouble) bool { return false })
	_, sent := q.Sent(ctx, claims["b"].Target)
	failures = append(failures, err, completed, renewal, last, dropped, held, summary, waits.Refused, sent, q.Postpone(ctx, renewed, "gate2", time.Hour, &trouble),
		q.Postpone(ctx, claims["d"], claims["d"].Gate, 0, nil))
	keys := stored.Keys{Prefix: prefix}
	failures = append(failures, client.Set(ctx, keys.Due(1, "gate0"), "of another type", 0).Err(), add("h", "h", 2))
	_, again := q.Claim(ctx, look) // lists the backlogs again
	failures = append(failures, again)
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
