package delivery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/retry"
)

const (
	lease      = 5 * time.Second         // how long a claim lasts
	renewAfter = 1500 * time.Millisecond // while a request is in flight

	// completeFor is how long a host tries to complete a notification. It is longer than
	// a lease: while the queue is down, no other host can claim the backlog.
	completeFor = time.Minute
)

// claims are the claims of this host. It is safe for concurrent use.
type claims struct {
	queue    module.DeliveryQueue
	failures *failures
	mu       sync.Mutex
	own      map[module.Target]*claimed
}

// claimed is a backlog that this host has claimed. Only one goroutine at a time
// uses it: during a request the timer that renews the claim, otherwise the sender.
type claimed struct {
	all       *claims
	claim     module.Claim
	gate      string    // that lists the backlog after the claim
	renewedAt time.Time // time before the call that claimed or renewed the backlog

	// again is set when this host claims the backlog again after the claim has lapsed.
	again atomic.Pointer[claimedAgain]
}

type claimedAgain struct {
	claim module.Claim
	at    time.Time
}

func (all *claims) add(claim module.Claim, at time.Time) *claimed {
	return &claimed{all: all, claim: claim, gate: claim.Gate, renewedAt: at}
}

// begin registers c for claimAgain, until end is called.
func (c *claimed) begin() (end func()) {
	all := c.all
	all.mu.Lock()
	defer all.mu.Unlock()
	all.own[c.claim.Target] = c
	return func() {
		all.mu.Lock()
		if all.own[c.claim.Target] == c {
			delete(all.own, c.claim.Target)
		}
		all.mu.Unlock()
		if again := c.again.Load(); again != nil {
			all.release(again.claim)
		}
	}
}

// claimAgain passes a new claim to the goroutine that sends the backlog, if any.
func (all *claims) claimAgain(claim module.Claim, at time.Time) (isOwn bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	c := all.own[claim.Target]
	if c != nil {
		c.again.Store(&claimedAgain{claim, at})
	}
	return c != nil
}

// isFenced reports whether an error says that another host has the backlog. If this
// host has claimed it again, c gets the new claim.
func (c *claimed) isFenced(err error) bool {
	if !errors.Is(err, module.ErrFenced) {
		return false
	}
	again := c.again.Swap(nil)
	if again != nil {
		c.claim, c.renewedAt = again.claim, again.at
	}
	return again == nil
}

func (c *claimed) keep(ctx context.Context) error {
	if time.Since(c.renewedAt) < renewAfter {
		return nil
	}
	return c.renew(ctx)
}

func (c *claimed) renew(ctx context.Context) error {
	now := time.Now()
	next, err := c.all.queue.Renew(ctx, c.claim, now.Sub(c.renewedAt))
	switch {
	case err == nil:
		c.claim, c.renewedAt = next, now
	case errors.Is(err, module.ErrFenced) && !c.isFenced(err):
		return nil
	}
	return err
}

func (c *claimed) hasLapsed() bool { return time.Since(c.renewedAt) >= lease }

// complete removes a notification. While the queue is not available it tries again; ok
// is false if the claim is lost.
func (c *claimed) complete(life context.Context, id string, trouble module.Trouble, sent string) (left int, ok bool) {
	if left, err := c.all.queue.Complete(life, c.claim, id, trouble, sent); err == nil {
		return left, true
	}
	return c.completeAgain(life, id, trouble, sent)
}

func (c *claimed) completeAgain(life context.Context, id string, trouble module.Trouble, sent string) (left int, ok bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(life), completeFor)
	defer cancel()
	fenced := 0
	retry.Repeat(ctx, 50*time.Millisecond, time.Second, func() bool {
		var err error
		left, err = c.all.queue.Complete(ctx, c.claim, id, trouble, sent)
		switch {
		case err == nil:
			ok = true
			cancel()
		case errors.Is(err, module.ErrFenced):
			// After the first error: a look of this host may just have claimed the backlog again.
			if fenced++; c.isFenced(err) && (fenced > 1 || !c.hasLapsed()) {
				cancel()
			}
		case life.Err() != nil: // no more tries after life has ended
			cancel()
		default:
			c.all.failures.add("complete a notification", err)
		}
		return false
	})
	return left, ok
}

// postpone ends the claim. If that fails, the claim lapses.
func (c *claimed) postpone(delay time.Duration, trouble *module.Trouble) {
	ctx, cancel := context.WithTimeout(context.Background(), lease)
	defer cancel()
	err := c.all.queue.Postpone(ctx, c.claim, c.gate, delay, trouble)
	if errors.Is(err, module.ErrFenced) && !c.isFenced(err) {
		err = c.all.queue.Postpone(ctx, c.claim, c.gate, delay, trouble)
	}
	if err != nil && !errors.Is(err, module.ErrFenced) {
		c.all.failures.add("postpone a backlog", err)
	}
}

// release makes the backlog due: at once, or after retryQueue if there was an error.
func (c *claimed) release(err error) {
	if err != nil {
		c.all.failures.add("read a backlog", err)
		c.postpone(retryQueue, nil)
		return
	}
	c.postpone(0, nil)
}

// release makes a backlog due at once.
func (all *claims) release(claim module.Claim) { all.add(claim, time.Now()).release(nil) }
