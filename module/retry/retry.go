// Package retry says how long calls wait and try; its API may change at any time.
package retry

import (
	"context"
	"errors"
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

// ErrSilent means that a part of the storage does not answer.
var ErrSilent = errors.New("a part of the storage does not answer")

// leavesSilent is the key of a context's value.
type leavesSilent struct{}

// LeaveSilent returns a context for a call for many users: a node of the storage that is known
// not to answer must not delay the users of others, so the call fails at once for its own.
// Without it, a call waits until its context ends.
func LeaveSilent(ctx context.Context) context.Context {
	return context.WithValue(ctx, leavesSilent{}, true)
}

// LeavesSilent reports whether a context is from [LeaveSilent].
func LeavesSilent(ctx context.Context) bool { return ctx.Value(leavesSilent{}) != nil }
