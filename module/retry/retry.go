// Package retry waits before the next try, after a failure or from time to time; its API
// may change at any time. No wait outlasts its context.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d, or until ctx ends, and returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// Jitter returns a random time from half of d to one and a half, so that hosts that
// began together do not go on together. It wants d above zero.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Repeat calls do until ctx ends. The waits between the calls double from shortest to
// longest, and are short again after a call that returned true, since it had worked
// for a while.
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
