package redisclient

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// coalescer sends concurrent calls to a node in batches, because most of a command's
// cost is the system calls around it. A call that finds one of the node's slots free
// sends its item at once, alone. Other calls wait; a freed slot sends up to maxBatch of
// them as one batch, the oldest first. A call never waits to fill a batch, for another
// node, or longer than its context.
//
// The call that has waited longest sends the batch, so no goroutine is needed.
type coalescer[T any] struct {
	slots func(*redis.Client) int // of a node

	mu     sync.Mutex
	queues map[string]*queue[T] // by address
}

// maxBatch bounds the calls in one pipeline, because replies come one after the other.
const maxBatch = 32

// do sends an item to a node and returns when it is done. Send gets the items of a
// batch, if this call sends one.
//
// Batched is true if the item was sent together with others, perhaps by another call.
// The only error is ctx's, after which the item may still be sent.
func (c *coalescer[T]) do(ctx context.Context, node *redis.Client, item T, send func(batch []T)) (batched bool, err error) {
	q := c.queueOf(node)
	own := &call[T]{item: item}
	if !q.takeSlot(own) {
		if err := q.wait(ctx, own); err != nil {
			return true, err
		}
	}
	if own.answered {
		return true, nil
	}
	calls := append(own.others, own) //nolint:gocritic // no other call uses others
	defer q.finish(calls)
	batch := make([]T, len(calls))
	for i, call := range calls {
		batch[i] = call.item
	}
	send(batch)
	return len(batch) > 1, nil
}

func (c *coalescer[T]) queueOf(node *redis.Client) *queue[T] {
	address := node.Options().Addr
	c.mu.Lock()
	defer c.mu.Unlock()
	q, found := c.queues[address]
	if !found {
		if c.queues == nil {
			c.queues = map[string]*queue[T]{}
		}
		q = &queue[T]{free: c.slots(node)}
		c.queues[address] = q
	}
	return q
}

type queue[T any] struct {
	mu      sync.Mutex
	free    int // slots
	waiting []*call[T]
}

type call[T any] struct {
	item T

	woken    chan struct{} // closed when the call must go on; nil if it found a free slot
	answered bool          // another call has sent the item
	others   []*call[T]    // the other calls of the batch that this call sends
}

func (q *queue[T]) takeSlot(c *call[T]) (taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.free > 0 {
		q.free--
		return true
	}
	c.woken = make(chan struct{})
	q.waiting = append(q.waiting, c)
	return false
}

func (q *queue[T]) wait(ctx context.Context, c *call[T]) error {
	select {
	case <-c.woken:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, c); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		return ctx.Err()
	}
	select {
	case <-c.woken: // other calls may wait for this call's batch
		return nil
	default:
		return ctx.Err()
	}
}

// finish wakes the answered calls of a batch, and gives its slot to the call that has
// waited longest.
func (q *queue[T]) finish(batch []*call[T]) {
	for _, c := range batch[:len(batch)-1] {
		c.answered = true
		close(c.woken)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxBatch)
	if n == 0 {
		q.free++
		return
	}
	next := q.waiting[0]
	next.others = slices.Clone(q.waiting[1:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	close(next.woken)
}
