package rediscommit

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// pipelines coalesces reads: for each node there are as many slots as the host has
// cores.
type pipelines struct {
	nodes *nodes
	coalescer[func(context.Context, redis.Cmdable)]
}

func newPipelines(nodes *nodes) *pipelines {
	return &pipelines{nodes: nodes, coalescer: coalescer[func(context.Context, redis.Cmdable)]{slots: runtime.GOMAXPROCS(0)}}
}

// send has a command sent to the master of a key, and returns when its answer is
// there. Queue gives the command to a client. It may be called on another
// goroutine, and must not depend on the context that it was made with.
//
// Direct is true if the command was sent to that node in a pipeline: then the
// context may have been that of another call, and nobody has followed redirections.
// An error is that of ctx: queue may still be called then, and the command be sent.
func (p *pipelines) send(ctx context.Context, key string, queue func(context.Context, redis.Cmdable)) (direct bool, err error) {
	node, err := p.nodes.masterOf(ctx, key)
	if err != nil {
		p.sendAlone(ctx, key, queue) // the client has its own ways, and errors
		return false, nil
	}
	isCluster := p.nodes.isCluster()
	batched, err := p.do(ctx, node, queue, func(batch []func(context.Context, redis.Cmdable)) {
		if len(batch) == 1 && !isCluster {
			queue(ctx, p.nodes.client)
			return
		}
		pipe := node.Pipeline()
		if isCluster {
			fence(ctx, pipe)
		}
		for _, queue := range batch {
			queue(ctx, pipe)
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
	})
	return batched || isCluster, err
}

// sendAlone sends a command by the client, which follows the key where it went.
func (p *pipelines) sendAlone(ctx context.Context, key string, queue func(context.Context, redis.Cmdable)) {
	if !p.nodes.isCluster() {
		queue(ctx, p.nodes.client)
		return
	}
	pipe := p.nodes.client.Pipeline()
	fence(ctx, pipe, key)
	queue(ctx, pipe)
	_, _ = pipe.Exec(ctx) // each command has its own error
}

// coalescer coalesces calls to nodes into batches: what a command costs is mostly
// the system calls around it, on the host and on Redis. For each node there are some
// slots. A call that finds a free slot sends its item at once, alone. The others
// wait; when a slot becomes free, those that wait for the same node are sent as one
// batch, in one pipeline. No call waits to fill a batch, for another node, or longer
// than its context.
//
// There is no goroutine of its own: the call that has waited longest sends the
// batch.
type coalescer[T any] struct {
	slots int // for each node

	mu     sync.Mutex
	queues map[string]*queue[T] // by address; as many as the cluster has had
}

// maxPerBatch bounds how many calls are sent in one pipeline, whose answers come one
// after the other.
const maxPerBatch = 32

// do has an item sent to a node, and returns when that was done. If it is on this call
// to do so, it calls send with the item and those of others.
//
// Batched is true if the item was sent with others, perhaps by another call. An error
// is that of ctx: the item may still be sent then.
func (c *coalescer[T]) do(ctx context.Context, node *redis.Client, item T, send func(batch []T)) (batched bool, err error) {
	q := c.to(node.Options().Addr)
	own := &call[T]{item: item}
	if !q.takeSlot(own) {
		if err := q.wait(ctx, own); err != nil {
			return true, err
		}
	}
	if own.answered {
		return true, nil
	}
	calls := append(own.others, own) //nolint:gocritic // nobody else has the others
	defer q.finish(calls)
	batch := make([]T, len(calls))
	for i, one := range calls {
		batch[i] = one.item
	}
	send(batch)
	return len(batch) > 1, nil
}

func (c *coalescer[T]) to(address string) *queue[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, found := c.queues[address]
	if !found {
		if c.queues == nil {
			c.queues = map[string]*queue[T]{}
		}
		q = &queue[T]{free: c.slots}
		c.queues[address] = q
	}
	return q
}

// queue is the calls for a node.
type queue[T any] struct {
	mu      sync.Mutex
	free    int // slots
	waiting []*call[T]
}

// call is one of [coalescer.do].
type call[T any] struct {
	item T

	woken    chan struct{} // closed when the call need not wait any more; nil if it had a slot at once
	answered bool          // by another call's batch; otherwise the call has a slot
	others   []*call[T]    // those to be sent in a batch with it
}

// takeSlot takes a free slot. If there is none, the call has to wait.
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

// wait returns when the call is answered, or has a slot.
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
	case <-c.woken: // others may wait for the batch that this call has to send
		return nil
	default:
		return ctx.Err()
	}
}

// finish wakes the calls that a batch has answered, and gives its slot to the call
// that has waited longest.
func (q *queue[T]) finish(batch []*call[T]) {
	for _, c := range batch[:len(batch)-1] {
		c.answered = true
		close(c.woken)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxPerBatch)
	if n == 0 {
		q.free++
		return
	}
	next := q.waiting[0]
	next.others = slices.Clone(q.waiting[1:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	close(next.woken)
}
