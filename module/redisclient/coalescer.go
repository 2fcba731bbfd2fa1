package redisclient

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// coalescer sends concurrent requests of one kind to a node in batches, because most of a
// command's cost is the system calls around it. A request that finds one of the node's slots
// free sends its commands at once, alone. Other requests wait; a freed slot sends up to
// maxBatch of them as one batch, the oldest first. A request never waits to fill a batch, for
// another node, or longer than its context.
//
// A batch without replies after lateAfter gives up its slot, so that silent connections
// delay only the requests that they carry.
//
// The request that has waited longest sends the batch, so no goroutine is needed.
type coalescer struct {
	pipelines *Pipelines
	kind      Kind
	slots     func(*redis.Client) int // of a node

	mu     sync.Mutex
	queues map[string]*queue // by address
}

// maxBatch bounds the requests in one pipeline, because replies come one after the other.
const maxBatch = 32

// maxPipeline bounds the commands of one pipeline, so that a long reply does not delay
// other requests.
const maxPipeline = 500

// lateAfter is much longer than a batch usually takes.
const lateAfter = 20 * time.Millisecond

// send sends commands to a node, together with those of other requests unless they are many
// or large, and perhaps by another request. It returns when they are done, or ctx has ended.
func (c *coalescer) send(ctx context.Context, node *redis.Client, commands []*sent) {
	if node == nil || len(commands) > maxBatch || slices.ContainsFunc(commands, func(s *sent) bool { return s.shared }) {
		for some := range slices.Chunk(commands, maxPipeline) {
			c.pipelines.send(ctx, c.kind, node, some)
		}
		return
	}
	// From begin on, another request may send the commands: fields that are set here must be set before.
	for _, s := range commands {
		s.err = errPanicked
	}
	q, own := c.queueOf(node), &request{commands: commands}
	if !q.begin(own) {
		if err := q.wait(ctx, own); err != nil {
			c.leave(commands, err)
			return
		}
	}
	// Here the commands are this request's again: either they are done, or it sends them.
	for _, s := range commands {
		s.shared = own.isDone || len(own.others) > 0
	}
	if own.isDone {
		return
	}
	defer q.finish(own)
	batch := slices.Clip(commands)
	for _, other := range own.others {
		batch = append(batch, other.commands...)
	}
	c.pipelines.send(ctx, c.kind, node, batch)
}

// leave sets the error of commands whose caller no longer waits. Another request may still
// send them.
func (c *coalescer) leave(commands []*sent, err error) {
	if c.kind.isDurable() {
		err = fmt.Errorf("other changes wait for their durability: %w", err)
	}
	for _, s := range commands {
		s.left = err
	}
}

func (c *coalescer) queueOf(node *redis.Client) *queue {
	address := node.Options().Addr
	c.mu.Lock()
	defer c.mu.Unlock()
	q, found := c.queues[address]
	if !found {
		if c.queues == nil {
			c.queues = map[string]*queue{}
		}
		q = newQueue(c.slots(node), node.Options().PoolSize)
		c.queues[address] = q
	}
	return q
}

type queue struct {
	slots  int // how many batches may be on their way, besides late batches
	limit  int // of batches
	recall func()

	mu       sync.Mutex
	sending  []*request // the requests whose batches are on their way, the oldest first
	waiting  []*request
	recalled bool // recall will be called
}

// newQueue returns the queue of a node. Its batches hold at most half of the node's
// connections.
func newQueue(slots, connections int) *queue {
	q := &queue{slots: slots, limit: max(slots, connections/2)}
	q.recall = func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.recalled = false
		q.sendWaiting()
	}
	return q
}

type request struct {
	commands []*sent

	woken  chan struct{} // closed when the request must go on; nil if it found a free slot
	isDone bool          // another request has sent the commands
	others []*request    // the other requests of the batch that this request sends
	began  time.Time     // to send the batch
}

// begin takes a slot. Without a free one, the request joins the waiting requests.
func (q *queue) begin(r *request) (taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 && q.hasSlot() {
		q.send(r)
		return true
	}
	r.woken = make(chan struct{})
	q.waiting = append(q.waiting, r)
	q.sendWaiting()
	return false
}

// hasSlot reports whether a batch may be sent now.
func (q *queue) hasSlot() bool {
	n := len(q.sending)
	return n < q.slots || n < q.limit && time.Since(q.sending[n-q.slots].began) >= lateAfter
}

func (q *queue) send(r *request) {
	r.began = time.Now()
	q.sending = append(q.sending, r)
}

// sendWaiting gives free slots to the requests that have waited longest. While requests wait,
// it runs again after lateAfter.
func (q *queue) sendWaiting() {
	for len(q.waiting) > 0 && q.hasSlot() {
		n := min(len(q.waiting), maxBatch)
		next := q.waiting[0]
		next.others = slices.Clone(q.waiting[1:n])
		q.waiting = slices.Delete(q.waiting, 0, n)
		q.send(next)
		close(next.woken)
	}
	if len(q.waiting) > 0 && !q.recalled {
		q.recalled = true
		time.AfterFunc(lateAfter, q.recall)
	}
}

func (q *queue) wait(ctx context.Context, r *request) error {
	select {
	case <-r.woken:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, r); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		return ctx.Err()
	}
	select {
	case <-r.woken: // other requests may wait for this request's batch
		return nil
	default:
		return ctx.Err()
	}
}

// finish wakes the other requests of a batch and frees its slot.
func (q *queue) finish(r *request) {
	for _, other := range r.others {
		other.isDone = true
		close(other.woken)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.sending, r)
	q.sending = slices.Delete(q.sending, i, i+1)
	q.sendWaiting()
}
