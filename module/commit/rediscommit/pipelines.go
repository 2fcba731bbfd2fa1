package rediscommit

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// pipelines coalesces reads into batches: what a command costs is mostly the
// system calls around it, on the host and on Redis. For each node there are as
// many slots as the host has cores. A call that finds a free slot sends its
// command at once, alone. The others wait; when a slot becomes free, those that
// wait for the same node are sent as one batch, in one pipeline. No call waits to
// fill a batch, for another node, or longer than its context.
//
// There is no goroutine of its own: the call that has waited longest sends the
// batch.
type pipelines struct {
	nodes *nodes
	slots int // for each node

	mu     sync.Mutex
	queues map[string]*queue // by address; as many as the cluster has had
}

// maxReadBatch bounds how many commands are sent in one pipeline, whose answers
// come one after the other.
const maxReadBatch = 32

func newPipelines(nodes *nodes) *pipelines {
	return &pipelines{nodes: nodes, slots: runtime.GOMAXPROCS(0), queues: map[string]*queue{}}
}

// send has a command sent to the master of a key, and returns when its answer is
// there. Queue gives the command to a client. It may be called on another
// goroutine, and must not depend on the context that it was made with.
//
// Batched is true if the command was sent with others: then the context was that
// of another call, and nobody has followed redirections. An error is that of ctx:
// queue may still be called then, and the command be sent.
func (p *pipelines) send(ctx context.Context, key string, queue func(context.Context, redis.Cmdable)) (batched bool, err error) {
	node, err := p.nodes.masterOf(ctx, key)
	if err != nil {
		queue(ctx, p.nodes.client) // which has its own ways, and errors
		return false, nil
	}
	q := p.to(node.Options().Addr)
	c := &call{queue: queue}
	if !q.takeSlot(c) {
		if err := q.wait(ctx, c); err != nil {
			return true, err
		}
	}
	if c.answered {
		return true, nil
	}
	batch := append(c.others, c) //nolint:gocritic // nobody else has the others
	defer q.finish(batch)
	if len(batch) == 1 {
		queue(ctx, p.nodes.client)
		return false, nil
	}
	pipe := node.Pipeline()
	for _, one := range batch {
		one.queue(ctx, pipe)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	return true, nil
}

func (p *pipelines) to(address string) *queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, found := p.queues[address]
	if !found {
		q = &queue{free: p.slots}
		p.queues[address] = q
	}
	return q
}

// queue is the calls for a node.
type queue struct {
	mu      sync.Mutex
	free    int // slots
	waiting []*call
}

// call is one of [pipelines.send].
type call struct {
	queue func(context.Context, redis.Cmdable)

	woken    chan struct{} // closed when the call need not wait any more; nil if it had a slot at once
	answered bool          // by another call's batch; otherwise the call has a slot
	others   []*call       // those to be sent in a batch with it
}

// takeSlot takes a free slot. If there is none, the call has to wait.
func (q *queue) takeSlot(c *call) (taken bool) {
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
func (q *queue) wait(ctx context.Context, c *call) error {
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
func (q *queue) finish(batch []*call) {
	for _, c := range batch[:len(batch)-1] {
		c.answered = true
		close(c.woken)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxReadBatch)
	if n == 0 {
		q.free++
		return
	}
	next := q.waiting[0]
	next.others = slices.Clone(q.waiting[1:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	close(next.woken)
}
