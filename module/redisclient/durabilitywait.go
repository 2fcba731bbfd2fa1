package redisclient

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
)

// durabilityWait is WAIT, WAITAOF or both, behind writes on the same connection.
type durabilityWait struct {
	required Durability
	deadline time.Time // for both waits together, if there are two
}

type doer interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
}

func (w durabilityWait) queueFirst(ctx context.Context, c doer) *redis.Cmd {
	if w.required.Replicas == 0 {
		return w.queueAOF(ctx, c)
	}
	return c.Do(ctx, "WAIT", w.required.Replicas, w.left(ctx))
}

func (w durabilityWait) queueAOF(ctx context.Context, c doer) *redis.Cmd {
	return c.Do(ctx, "WAITAOF", 1, 0, w.left(ctx))
}

// left returns the milliseconds left for a wait, at least 1, because 0 would wait
// forever. The wait ends before ctx does, because the client closes a connection with a
// late reply.
func (w durabilityWait) left(ctx context.Context) int64 {
	left := time.Until(w.deadline)
	if deadline, found := ctx.Deadline(); found {
		untilEnd := time.Until(deadline)
		left = min(left, max(untilEnd-maxLateness, untilEnd/2))
	}
	return max((left + time.Millisecond - 1).Milliseconds(), 1)
}

func (w durabilityWait) checkFirst(waited *redis.Cmd) error {
	if w.required.Replicas == 0 {
		return w.checkAOF(waited)
	}
	got, err := waited.Int64()
	if err == nil && got < int64(w.required.Replicas) {
		err = fmt.Errorf("%w: %d of %d replicas have the change after %v",
			fault.ErrNotConfirmed, got, w.required.Replicas, w.required.Timeout)
	}
	return err
}

func (w durabilityWait) checkAOF(waited *redis.Cmd) error {
	got, err := waited.Int64Slice()
	if err == nil && (len(got) == 0 || got[0] < 1) {
		err = fmt.Errorf("%w: the master does not have the change on disk after %v", fault.ErrNotConfirmed, w.required.Timeout)
	}
	return err
}

type connection interface {
	doer
	Pipeline() redis.Pipeliner
}

// sendDurably sends writes in a pipeline that ends with the wait for their durability.
func sendDurably(ctx context.Context, d Durability, node *redis.Client, group []*sent) {
	start := time.Now()
	wait := durabilityWait{required: d, deadline: start.Add(d.Timeout)}
	var connection connection = node
	if d.needsTwoWaits() { // the second wait needs the same connection
		conn := node.Conn()
		defer conn.Close()
		connection = conn
	}
	pipe := connection.Pipeline()
	for _, s := range group {
		s.queue(ctx, pipe)
	}
	waited := wait.queueFirst(ctx, pipe)
	exec(ctx, pipe, group)
	done := slices.DeleteFunc(slices.Clone(group), func(s *sent) bool { return s.err != nil })
	if len(done) == 0 {
		return
	}
	err := wait.checkFirst(waited)
	if err == nil && d.needsTwoWaits() {
		err = wait.checkAOF(wait.queueAOF(ctx, connection))
	}
	for _, s := range done {
		s.err, s.waited = err, time.Since(start)
	}
}
