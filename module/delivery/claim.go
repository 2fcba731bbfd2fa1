package delivery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/retry"
)

const (
	lease      = 5 * time.Second         // how long a claim lasts
	renewAfter = 1500 * time.Millisecond // while a request is in flight

	// completeFor is how long a host tries to complete a notification. It is longer than
	// a lease: while the queue is down, no other host can claim the pusher.
	completeFor = time.Minute
)

// claims are the claims of this host. It is safe for concurrent use.
type claims struct {
	queue    module.DeliveryQueue
	failures *failures
	mu       sync.Mutex
	own      map[pusherName]*claimed
}

type pusherName struct {
	user   mxid.UserID
	pusher string
}

func nameOf(c *module.Claim) pusherName { return pusherName{c.User, c.Pusher} }

// claimed is a pusher that this host has claimed. Only one goroutine at a time
// uses it: during a request the timer that renews the claim, otherwise the sender.
type claimed struct {
	all       *claims
	claim     *module.Claim
	trouble   trouble
	renewedAt time.Time // time before the call that claimed or renewed the pusher

	// again is set when this host claims the pusher again after the claim has lapsed.
	again atomic.Pointer[claimed]
}

func (all *claims) add(claim *module.Claim, at time.Time) *claimed {
	return &claimed{all: all, claim: claim, renewedAt: at}
}

// begin registers c for claimAgain, until end is called.
func (c *claimed) begin() (end func()) {
	all := c.all
	all.mu.Lock()
	defer all.mu.Unlock()
	name := nameOf(c.claim)
	all.own[name] = c
	return func() {
		all.mu.Lock()
		if all.own[name] == c {
			delete(all.own, name)
		}
		all.mu.Unlock()
		if again := c.again.Load(); again != nil {
			again.release()
		}
	}
}

// claimAgain passes a new claim to the goroutine that sends for the pusher, if any.
func (all *claims) claimAgain(again *claimed) (isOwn bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	c := all.own[nameOf(again.claim)]
	if c != nil {
		c.again.Store(again)
	}
	return c != nil
}

// isFenced reports whether an error says that another host has the pusher. If this
// host has claimed it again, c gets the new claim.
func (c *claimed) isFenced(err error) bool {
	if !errors.Is(err, module.ErrFenced) {
		return false
	}
	again := c.again.Swap(nil)
	if again != nil {
		c.claim, c.renewedAt = again.claim, again.renewedAt
	}
	return again == nil
}

func (c *claimed) keep(ctx context.Context) error {
	if time.Since(c.renewedAt) < renewAfter {
		return nil
	}
	return c.renew(ctx, false)
}

func (c *claimed) renew(ctx context.Context, fails bool) error {
	now := time.Now()
	err := c.all.queue.Renew(ctx, c.claim, lease, fails)
	switch {
	case err == nil:
		c.renewedAt = now
	case errors.Is(err, module.ErrFenced) && !c.isFenced(err):
		return nil
	}
	return err
}

func (c *claimed) hasLapsed() bool { return time.Since(c.renewedAt) >= lease }

// complete moves the pusher to a place. While the queue is not available it tries again;
// ok is false if the claim is lost.
func (c *claimed) complete(life context.Context, d module.Done) (left int, ok bool) {
	d.Trouble = c.trouble.stored()
	if left, err := c.all.queue.Complete(life, c.claim, d); err == nil {
		return left, true
	}
	return c.completeAgain(life, d)
}

func (c *claimed) completeAgain(life context.Context, d module.Done) (left int, ok bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(life), completeFor)
	defer cancel()
	fenced := 0
	retry.Repeat(ctx, 50*time.Millisecond, time.Second, func() bool {
		var err error
		left, err = c.all.queue.Complete(ctx, c.claim, d)
		switch {
		case err == nil:
			ok = true
			cancel()
		case errors.Is(err, module.ErrFenced):
			// After the first error: a look of this host may just have claimed the pusher again.
			fenced++
			switch isFenced := c.isFenced(err); {
			case isFenced && (fenced > 1 || !c.hasLapsed()):
				cancel()
			case !isFenced && c.claim.Number >= d.To: // another host has sent it meanwhile
				left, ok = 1, true
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

// postpone ends the claim. While the queue is not available, it tries again, until the claim
// lapses.
func (c *claimed) postpone(delay time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), lease)
	defer cancel()
	retry.Repeat(ctx, 50*time.Millisecond, time.Second, func() bool {
		if c.tryToPostpone(ctx, delay) {
			cancel()
		}
		return false
	})
}

// tryToPostpone reports whether the claim has ended.
func (c *claimed) tryToPostpone(ctx context.Context, delay time.Duration) (ok bool) {
	err := c.all.queue.Postpone(ctx, c.claim, delay, c.trouble.stored(), c.claim.Fails)
	if errors.Is(err, module.ErrFenced) && !c.isFenced(err) {
		err = c.all.queue.Postpone(ctx, c.claim, delay, c.trouble.stored(), c.claim.Fails)
	}
	if err != nil && !errors.Is(err, module.ErrFenced) {
		c.all.failures.add("postpone a pusher", err)
		return false
	}
	return true
}

// release makes the pusher due at once. If that fails, the claim lapses.
func (c *claimed) release() { c.releaseIn(0) }

func (c *claimed) releaseIn(delay time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), lease)
	defer cancel()
	c.tryToPostpone(ctx, delay)
}

// releaseAfter makes the pusher due after retryQueue because of an error. A lost claim needs
// no release.
func (c *claimed) releaseAfter(doing string, err error) {
	if errors.Is(err, module.ErrFenced) {
		return
	}
	c.all.failures.add(doing, err)
	c.releaseIn(retryQueue)
}
