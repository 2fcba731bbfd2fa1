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

// durabilityWait waits for the preceding writes on its connection.
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
			commit.ErrNotConfirmed, got, w.required.Replicas, w.required.Timeout)
	}
	return err
}

func (w durabilityWait) checkAOF(waited *redis.Cmd) error {
	got, err := waited.Int64Slice()
	if err == nil && (len(got) == 0 || got[0] < 1) {
		err = fmt.Errorf("%w: the master does not have the change on disk after %v", commit.ErrNotConfirmed, w.required.Timeout)
	}
	return err
}

// WaitLimiter lets durability waits hold at most half of a client's connections to each
// node. While a replica is down, all changes wait; other commands use the other half.
// All stores on one client share it. The zero value is ready. It is safe for concurrent
// use.
type WaitLimiter struct {
	mu    sync.Mutex
	nodes map[string]*semaphore.Weighted // by address, for all nodes that the cluster has had
}

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
