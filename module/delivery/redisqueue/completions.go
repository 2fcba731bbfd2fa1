package redisqueue

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
)

// completeDelay is how long a completion waits for further ones, to share a round trip. If
// the host crashes in this time, the notification is sent again.
const completeDelay = 2 * time.Millisecond

// completions are sent together, completeDelay after the first: in a pipeline for each
// master, so that a master which is away delays its own users only.
type completions struct {
	mu      sync.Mutex
	waiting map[*redis.Client][]*completion
}

// completion has commands on the keys of a user.
type completion struct {
	commands []*redisclient.Command
	err      error
	done     chan struct{} // closed when err is set
}

// do sends commands, and returns the first error. When ctx ends first, the commands may be
// sent all the same.
func (c *completions) do(ctx context.Context, q *Queue, commands []*redisclient.Command) error {
	one := &completion{commands: commands, done: make(chan struct{})}
	c.add(q, q.pipelines.Master(ctx, commands[0].Key), one)
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return unavailable("complete", ctx.Err())
	}
}

func (c *completions) add(q *Queue, master *redis.Client, one *completion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = map[*redis.Client][]*completion{}
	}
	c.waiting[master] = append(c.waiting[master], one)
	if len(c.waiting[master]) == 1 {
		time.AfterFunc(completeDelay, func() { c.send(q, c.take(master)) })
	}
}

func (c *completions) take(master *redis.Client) (all []*completion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = c.waiting[master]
	delete(c.waiting, master)
	return all
}

// send has no caller's context, since it is for all callers.
func (c *completions) send(q *Queue, all []*completion) {
	var commands []*redisclient.Command
	for _, one := range all {
		commands = append(commands, one.commands...)
	}
	errs := q.writer.Do(context.Background(), commands...)
	for _, one := range all {
		n := len(one.commands)
		one.err = cmp.Or(errs[:n]...)
		errs = errs[n:]
		close(one.done)
	}
}
