// Package commit repeats the attempts of one optimistic change, "read, edit,
// write if nothing came in between", until one of them takes effect, exactly
// once, or the time is up. It knows nothing of what is changed or where.
package commit

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"time"

	"github.com/pushfx/pushfx/module/fault"
)

// The waits between attempts: each is random between nothing and a bound that
// doubles from FirstWait to LongestWait. Random waits spread the writers that
// lost to the same winner; growing ones make room for as many as there are.
const (
	FirstWait   = time.Millisecond
	LongestWait = 64 * time.Millisecond
)

// maxFailures is how often a change is tried again although the store failed.
// Clients of stores repeat on their own; this is for the answer that got lost.
const maxFailures = 2

// Write identifies one change in all its attempts, so that a store can leave a
// receipt with the change and tell later whether it took effect.
type Write struct {
	ID string // unique to the change

	// Again is true from the second attempt on. Until a receipt says otherwise,
	// a request of an earlier one may still be on its way to the store: before
	// the change is refused, or found to change nothing, keep it from ever
	// taking effect.
	Again bool

	// Uncertain is true when an earlier attempt failed in a way that leaves
	// open whether it took effect: look for its receipt after reading, before
	// editing.
	Uncertain bool
}

// Attempt tries once. Done is false where another change came in between; an
// error of kind [fault.Unavailable] may have taken effect nevertheless; any
// other error is final and has changed nothing.
type Attempt func(ctx context.Context, w Write) (done bool, err error)

// Until repeats attempt until it is done or fails for good. Lost races have no
// limit but ctx: with enough writers every fixed count is too low. When ctx
// ends first, the error is that of the last attempt, or wraps ctx's where it
// only lost its race.
func Until(ctx context.Context, attempt Attempt) error {
	w := Write{ID: rand.Text()}
	failures := 0
	for bound := FirstWait; ; bound = min(2*bound, LongestWait) {
		done, err := attempt(ctx, w)
		switch {
		case err == nil && done:
			return nil
		case err != nil && (!isUncertain(err) || failures == maxFailures || ctx.Err() != nil):
			return err
		case err != nil:
			failures++
			w.Uncertain = true
		}
		w.Again = true
		if ended := sleep(ctx, mathrand.N(bound)); ended != nil {
			return cmp.Or(err, fmt.Errorf("lost every race for the write: %w", ended))
		}
	}
}

// isUncertain reports whether an attempt may have taken effect although it
// failed: the store was reached, but its answer was not.
func isUncertain(err error) bool {
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" {
		return false
	}
	return fault.KindOf(err) == fault.Unavailable
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return ctx.Err()
	}
}
