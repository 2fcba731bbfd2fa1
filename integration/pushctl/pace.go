package main

import (
	"context"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/retry"
)

// pace keeps to a number of keys a second.
type pace struct {
	rate int // 0 is no limit

	mu   sync.Mutex
	next time.Time // when the keys that were taken so far are paid for
}

// page is how many keys to take at once, so that a slow pace is an even one.
func (p *pace) page(most int) int {
	if p.rate <= 0 {
		return most
	}
	return min(most, max(1, p.rate/10))
}

// wait returns when n more keys may be taken.
func (p *pace) wait(ctx context.Context, n int) error {
	if p.rate <= 0 {
		return ctx.Err()
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	due := p.next
	p.next = due.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	p.mu.Unlock()
	return retry.Sleep(ctx, time.Until(due))
}
