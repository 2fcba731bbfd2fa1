package rediscommit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"github.com/pushfx/pushfx/module/commit"
)

// wait is the wait for what a durability asks of the writes that were sent before
// on the same connection.
type wait struct {
	what Durability
	ends time.Time // if it takes two waits, of both together
}

// doer is a connection, or a pipeline that is sent later.
type doer interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// queueFirst queues the wait for replicas, or, if none are asked for, for the
// file.
func (w wait) queueFirst(ctx context.Context, c doer) *redis.Cmd {
	if w.what.Replicas == 0 {
		return w.queueAOF(ctx, c)
	}
	return c.Do(ctx, "WAIT", w.what.Replicas, w.left(ctx))
}

func (w wait) queueAOF(ctx context.Context, c doer) *redis.Cmd {
	return c.Do(ctx, "WAITAOF", 1, 0, w.left(ctx))
}

// left is how many milliseconds a wait may take, rounded up, since a server
// must not give up before the timeout. Its answer should come before ctx ends,
// or else the client gives the connection up. To wait for 0 would be for ever.
func (w wait) left(ctx context.Context) int64 {
	left := time.Until(w.ends)
	if deadline, found := ctx.Deadline(); found {
		untilEnd := time.Until(deadline)
		left = min(left, max(untilEnd-lateness, untilEnd/2))
	}
	return max((left + time.Millisecond - 1).Milliseconds(), 1)
}

func (w wait) checkFirst(waited *redis.Cmd) error {
	if w.what.Replicas == 0 {
		return w.checkAOF(waited)
	}
	got, err := waited.Int64()
	if err == nil && got < int64(w.what.Replicas) {
		err = fmt.Errorf("%w: %d of %d replicas have the change after %v",
			commit.ErrNotConfirmed, got, w.what.Replicas, w.what.Timeout)
	}
	return err
}

func (w wait) checkAOF(waited *redis.Cmd) error {
	got, err := waited.Int64Slice()
	if err == nil && (len(got) == 0 || got[0] < 1) {
		err = fmt.Errorf("%w: the master does not have the change on disk after %v", commit.ErrNotConfirmed, w.what.Timeout)
	}
	return err
}

// WaitLimiter leaves half of a client's connections to each node to commands without
// a durability: each wait for replicas or a disk holds a connection, and when a replica
// is gone, all changes wait. All stores on one client share a limiter; see [Options].
// The zero value is ready. It is safe for concurrent use.
type WaitLimiter struct {
	mu    sync.Mutex
	nodes map[string]*semaphore.Weighted // by address; as many as the cluster has had
}

// acquire waits until a node may have another wait, which release ends.
func (l *WaitLimiter) acquire(ctx context.Context, node *redis.Client) (release func(), err error) {
	waits := l.of(node.Options())
	if err := waits.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("other changes wait for their durability: %w", err)
	}
	return func() { waits.Release(1) }, nil
}

func (l *WaitLimiter) of(node *redis.Options) *semaphore.Weighted {
	l.mu.Lock()
	defer l.mu.Unlock()
	waits, found := l.nodes[node.Addr]
	if !found {
		if l.nodes == nil {
			l.nodes = map[string]*semaphore.Weighted{}
		}
		waits = semaphore.NewWeighted(int64(max(1, node.PoolSize/2)))
		l.nodes[node.Addr] = waits
	}
	return waits
}
