package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
)

// deliveryACL is the heading of the page with what delivery needs beside the line
// of the service.
const deliveryACL = "### ACL: more for `pushfx.Delivery`"

// deliver has a host's queue do all that it does, as the user of a line, and
// returns what went wrong: an error, and what the servers refused.
func (g *guardedServers) deliver(l aclLine, prefix string) (trouble []string) {
	g.t.Helper()
	g.apply(l)
	g.reset()
	client := g.login(l.user)
	defer client.Close()
	ctx, cancel := context.WithTimeout(g.t.Context(), 4*stepTimeout)
	defer cancel()
	if err := useQueue(ctx, g.t, client, prefix); err != nil {
		trouble = append(trouble, err.Error())
	}
	return append(trouble, g.denied(l.user)...)
}

// useQueue calls every method of a queue, so that every script and command is
// sent.
func useQueue(ctx context.Context, t *testing.T, client redis.UniversalClient, prefix string) error {
	t.Helper()
	q := newQueue(t, client, func(c *queueConfig) {
		c.Redis.KeyPrefix, c.Redis.OperationTimeout, c.Config = prefix, stepTimeout, redisqueue.Config{LogEntries: 2}
	})
	if err := q.Open(ctx, 8); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	subscribed, heard := make(chan struct{}), make(chan struct{}, 10)
	go func() {
		watched <- q.Watch(watching, func() { close(subscribed) }, func(int) { heard <- struct{}{} })
	}()
	defer cancel()
	select {
	case <-subscribed:
	case err := <-watched:
		return err
	}
	failures := []error{}
	for _, key := range []string{"a", "a", "b", "c", "d"} { // one twice, and more than the log keeps
		failures = append(failures, q.Append(ctx, key, time.Minute, map[int][]byte{1: []byte("x")}))
		_, err := q.Read(ctx, 1, "", 10)
		failures = append(failures, err)
	}
	_, err := q.Join(ctx, "host", time.Minute)
	lease := q.Acquire(ctx, "host", time.Minute, []int{1})[1]
	_, shared := q.ShareGateways(ctx, map[string]module.GatewayChange{"a": {State: module.GatewayClosed}, "b": {State: module.GatewayOpen}}, time.Minute)
	failures = append(failures, err, lease.Err, shared)
	progress := module.Progress{Epoch: lease.Value.Epoch, Done: []string{lease.Value.Last}, Held: map[string][]byte{"a": []byte("x"), "b": nil}}
	_, restored := q.Restore(ctx, 1)
	failures = append(failures, q.Checkpoint(ctx, map[int]module.Progress{1: progress})[1], restored,
		followInstruction(ctx, q), q.Release(ctx, "host", 1, lease.Value.Epoch), q.Leave(ctx, "host"))
	if err := errors.Join(failures...); err != nil {
		return err
	}
	select {
	case <-heard:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no entry was heard of: %w", ctx.Err())
	}
}

// followInstruction gives the owner of a shard an instruction, and answers it.
func followInstruction(ctx context.Context, q *redisqueue.Queue) error {
	ended := make(chan error, 1)
	go func() { ended <- q.Instruct(ctx, map[int][]byte{1: []byte("x")})[1].Err }()
	for {
		select {
		case err := <-ended:
			return err
		default:
		}
		lease := q.Acquire(ctx, "host", time.Minute, []int{1})[1]
		err := lease.Err
		for id := range lease.Value.Instructions {
			answers := map[string][]byte{id: []byte("y")}
			answered := module.Progress{Epoch: lease.Value.Epoch, Done: []string{lease.Value.Last}, Answers: answers}
			err = errors.Join(err, q.Checkpoint(ctx, map[int]module.Progress{1: answered})[1])
		}
		if err != nil {
			return err
		}
	}
}

func TestTheACLOfThePageIsEnoughForDelivery(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedServers) {
		plain, prefixed := g.lines()
		more := aclLines(t, deliveryACL)[0]
		for prefix, l := range map[string]aclLine{examplePrefix: prefixed.with(more.withPrefix(examplePrefix)), "": plain.with(more)} {
			for _, trouble := range g.deliver(l, prefix) {
				t.Errorf("with all that the page grants, and the prefix %q: %s", prefix, trouble)
			}
		}
		g.wantUsed(more)
	})
}
