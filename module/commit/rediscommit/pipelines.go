package rediscommit

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// pipelines has callers share round trips: what a command costs is mostly the
// system calls around it, on the host and on Redis. As many as there are cores
// send their command at once, as it is; who comes while they are under way goes
// with all who wait for the same node, in one pipeline, when one of them is
// back. Nobody waits for company, for another node, or longer than their
// context.
//
// Nothing of it runs by itself: a pipeline is sent by the caller who has waited
// longest.
type pipelines struct {
	nodes *nodes
	lanes int // to each node

	mu     sync.Mutex
	queues map[string]*queue // by address; as many as the cluster has had
}

// mostShared bounds how many commands share a pipeline, whose answers come one
// after the other.
const mostShared = 32

func newPipelines(nodes *nodes) *pipelines {
	return &pipelines{nodes: nodes, lanes: runtime.GOMAXPROCS(0), queues: map[string]*queue{}}
}

// send has a command sent, and returns when its answer is there. Queue gives the
// command to a client; it may do so on another goroutine, and must not depend on
// the context that it was made with. Shared is true where it went with others:
// then its context was the one of somebody else, and nobody has followed
// redirections. An error is that of ctx: queue may still be called then, and the
// command be sent.
func (p *pipelines) send(ctx context.Context, key string, queue func(context.Context, redis.Cmdable)) (shared bool, err error) {
	node, err := p.nodes.masterOf(ctx, key)
	if err != nil {
		queue(ctx, p.nodes.client) // which has its own ways, and errors
		return false, nil
	}
	q := p.to(node.Options().Addr)
	me := &passenger{queue: queue}
	if !q.enter(me) {
		if err := q.wait(ctx, me); err != nil {
			return true, err
		}
	}
	if me.arrived {
		return true, nil
	}
	company := append(me.company, me)
	defer q.leave(company)
	if len(company) == 1 {
		queue(ctx, p.nodes.client)
		return false, nil
	}
	pipe := node.Pipeline()
	for _, one := range company {
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
		q = &queue{lanes: p.lanes}
		p.queues[address] = q
	}
	return q
}

// queue is the callers with commands for a node.
type queue struct {
	mu      sync.Mutex
	lanes   int // that are free
	waiting []*passenger
}

// passenger is a caller.
type passenger struct {
	queue func(context.Context, redis.Cmdable)

	woken   chan struct{} // nil for who need not wait
	arrived bool          // the answer is there; else it is on the passenger to send
	company []*passenger  // whose commands are to be sent with their own
}

// enter takes a free lane. If there is none, the caller has to wait.
func (q *queue) enter(me *passenger) (free bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lanes > 0 {
		q.lanes--
		return true
	}
	me.woken = make(chan struct{})
	q.waiting = append(q.waiting, me)
	return false
}

// wait waits until the answer is there, or it is on the caller to send.
func (q *queue) wait(ctx context.Context, me *passenger) error {
	select {
	case <-me.woken:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, me); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		return ctx.Err()
	}
	select {
	case <-me.woken: // others may wait for what is on this one to send
		return nil
	default:
		return ctx.Err()
	}
}

// leave wakes those whose answers are there, and hands the lane over to who has
// waited longest.
func (q *queue) leave(company []*passenger) {
	for _, one := range company[:len(company)-1] {
		one.arrived = true
		close(one.woken)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), mostShared)
	if n == 0 {
		q.lanes++
		return
	}
	next := q.waiting[0]
	next.company = slices.Clone(q.waiting[1:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	close(next.woken)
}
