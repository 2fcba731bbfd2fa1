package redisqueue

import (
	"context"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
)

// completeDelay is how long a completion waits for others to share a round trip. After a
// crash, such notifications are sent again.
const completeDelay = 2 * time.Millisecond

// sentLasts is how long a pusher's last counts are kept.
const sentLasts = 30 * 24 * time.Hour

// completions are sent together, completeDelay after the first.
type completions struct {
	mu      sync.Mutex
	waiting []*completion
}

type completion struct {
	call *redisclient.Call
	err  error
	done chan struct{} // closed when err and the reply are set
}

// Complete implements [module.DeliveryQueue].
func (q *Queue) Complete(ctx context.Context, c module.Claim, id, trouble, sent string) (left int, err error) {
	call := complete.Call(q.allKeys(c.Target), c.Target.Name, c.Token, id, trouble, sent, sentLasts.Milliseconds())
	one := &completion{done: make(chan struct{}), call: call}
	q.sendSoon(one)
	select {
	case <-one.done:
		if one.err != nil {
			return 0, one.err
		}
		return number(one.call.Reply)
	case <-ctx.Done():
		return 0, unavailable("complete", ctx.Err())
	}
}

// Sent implements [module.DeliveryQueue].
func (q *Queue) Sent(ctx context.Context, t module.Target) (text string, err error) {
	err = q.do(ctx, "read the last counts", func(ctx context.Context) (err error) {
		text, err = q.client.Get(ctx, q.keys.Sent(t.Shard, t.Name)).Result()
		return err
	})
	return text, err
}

func (q *Queue) sendSoon(one *completion) {
	q.completions.mu.Lock()
	defer q.completions.mu.Unlock()
	q.completions.waiting = append(q.completions.waiting, one)
	if len(q.completions.waiting) == 1 {
		time.AfterFunc(completeDelay, q.sendCompletions)
	}
}

// sendCompletions sends the waiting completions. It has no caller's context, since it is
// for all callers.
func (q *Queue) sendCompletions() {
	q.completions.mu.Lock()
	all := q.completions.waiting
	q.completions.waiting = nil
	q.completions.mu.Unlock()
	calls := make([]*redisclient.Call, len(all))
	for i, one := range all {
		calls[i] = one.call
	}
	for i, err := range q.run(context.Background(), calls...) {
		all[i].err = err
		close(all[i].done)
	}
}
