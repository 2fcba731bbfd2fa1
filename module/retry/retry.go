// Package retry waits between tries; its API may change at any time.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d, or until ctx ends, and returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// Jitter returns a random time between d/2 and 3d/2, so that hosts which start together
// drift apart. D must be above zero.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Repeat calls do until ctx ends. The waits between calls double from shortest to
// longest, and start again at shortest when do returns true.
func Repeat(ctx context.Context, shortest, longest time.Duration, do func() (worked bool)) {
	for wait := shortest; ; wait = min(2*wait, longest) {
		if do() {
			wait = shortest
		}
		if Sleep(ctx, Jitter(wait)) != nil {
			return
		}
	}
}
