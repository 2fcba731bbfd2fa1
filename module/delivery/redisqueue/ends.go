package redisqueue

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// gatherFor is how long the end of a claim waits for further ones, to share a round trip and a
// listing. If the host crashes in this time, the notification is sent again.
const gatherFor = 2 * time.Millisecond

// ends are calls that complete or postpone. They are sent together, gatherFor after the first:
// in a pipeline for each master, so that a master which is away delays its own users only.
type ends struct {
	mu      sync.Mutex
	waiting map[*redis.Client][]*end
}

type end struct {
	*listedCall
	done chan struct{} // closed when the call has its reply
}

// do makes a call on a user's log, and returns its error. When ctx ends first, the call may be
// made all the same, and must not be read.
func (e *ends) do(ctx context.Context, q *Queue, call *listedCall) error {
	one := &end{call, make(chan struct{})}
	e.add(q, q.pipelines.Master(ctx, call.call.Keys()[0]), one)
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return unavailable("end a claim", ctx.Err())
	}
}

func (e *ends) add(q *Queue, master *redis.Client, one *end) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = map[*redis.Client][]*end{}
	}
	e.waiting[master] = append(e.waiting[master], one)
	if len(e.waiting[master]) == 1 {
		time.AfterFunc(gatherFor, func() { e.send(q, e.take(master)) })
	}
}

func (e *ends) take(master *redis.Client) (all []*end) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all = e.waiting[master]
	delete(e.waiting, master)
	return all
}

// send has no caller's context, since it is for all callers.
func (e *ends) send(q *Queue, all []*end) {
	calls := make([]*listedCall, len(all))
	for i, one := range all {
		calls[i] = one.listedCall
	}
	q.Index.sendListed(context.Background(), q.writer.Do, calls)
	for _, one := range all {
		close(one.done)
	}
}
