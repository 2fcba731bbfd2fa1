package redisqueue

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// If the host crashes while a call waits in a batch, a notification is sent again, or a look
// finds nothing to send.
const (
	endAfter    = 2 * time.Millisecond // completions and postponements
	removeAfter = 150 * time.Millisecond
)

// batch sends items together, some time after the first. It is safe for concurrent use.
type batch[T any] struct {
	mu    sync.Mutex
	items map[*redis.Client][]T // by master, so that one that is away delays its own users only; nil for all
}

// add adds an item. Send has no caller's context, since it is for all callers.
func (b *batch[T]) add(master *redis.Client, item T, after time.Duration, send func(context.Context, []T)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.items == nil {
		b.items = map[*redis.Client][]T{}
	}
	b.items[master] = append(b.items[master], item)
	if len(b.items[master]) == 1 {
		time.AfterFunc(after, func() { send(context.Background(), b.take(master)) })
	}
}

func (b *batch[T]) take(master *redis.Client) []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.items[master]
	delete(b.items, master)
	return all
}

// end is a call that ends a claim.
type end struct {
	*listedCall
	done chan struct{} // closed when the call has its reply
}

// end makes a call on a user's log, and returns its error. When ctx ends first, the call may be
// made all the same, and must not be read.
func (q *Queue) end(ctx context.Context, call *listedCall) error {
	one := end{call, make(chan struct{})}
	q.ends.add(q.pipelines.Master(ctx, call.call.Keys()[0]), one, endAfter, q.sendEnds)
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return unavailable("end a claim", ctx.Err())
	}
}

func (q *Queue) sendEnds(ctx context.Context, all []end) {
	calls := make([]*listedCall, len(all))
	for i, one := range all {
		calls[i] = one.listedCall
	}
	q.Index.sendListed(ctx, q.writer.Do, calls)
	for _, one := range all {
		close(one.done)
	}
}
