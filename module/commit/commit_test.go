package commit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
)

// step is the outcome of one attempt.
type step struct {
	done bool
	err  error
}

var (
	lost     = step{}
	done     = step{done: true}
	lostSend = step{err: fault.Wrap(fault.Unavailable, "unavailable", &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF})}
	noDial   = step{err: fault.Wrap(fault.Unavailable, "unavailable", fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Err: io.EOF}))}
	refused  = step{err: fault.New(fault.NotFound, "refused")}
	internal = step{err: io.ErrClosedPipe}
)

// run makes the steps one after the other and repeats the last, and returns
// the writes that the attempts were given.
func run(ctx context.Context, steps ...step) (writes []commit.Write, err error) {
	err = commit.Until(ctx, func(_ context.Context, w commit.Write) (bool, error) {
		s := steps[min(len(writes), len(steps)-1)]
		writes = append(writes, w)
		return s.done, s.err
	})
	return writes, err
}

func TestUntilRepeatsExactlyWhatMayStillSucceed(t *testing.T) {
	for name, test := range map[string]struct {
		steps    []step
		attempts int
		want     error
	}{
		"done at once":                   {[]step{done}, 1, nil},
		"done after lost races":          {[]step{lost, lost, lost, done}, 4, nil},
		"a lost answer":                  {[]step{lostSend, done}, 2, nil},
		"two lost answers":               {[]step{lostSend, lostSend, done}, 3, nil},
		"three lost answers":             {[]step{lostSend, lostSend, lostSend}, 3, lostSend.err},
		"a lost answer among lost races": {[]step{lost, lostSend, lost, lost, done}, 5, nil},
		"lost races do not forgive":      {[]step{lostSend, lost, lostSend, lost, lostSend}, 5, lostSend.err},
		"a connection that was not made": {[]step{noDial}, 1, noDial.err},
		"not made after a lost answer":   {[]step{lostSend, noDial}, 2, noDial.err},
		"a refusal":                      {[]step{refused}, 1, refused.err},
		"a refusal after a lost race":    {[]step{lost, refused}, 2, refused.err},
		"a refusal after a lost answer":  {[]step{lostSend, refused}, 2, refused.err},
		"an error that is no fault":      {[]step{internal}, 1, internal.err},
		"an error beside done":           {[]step{{true, refused.err}}, 1, refused.err},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				writes, err := run(t.Context(), test.steps...)
				if err != test.want {
					t.Errorf("got %v, want %v as it is", err, test.want)
				}
				if len(writes) != test.attempts {
					t.Fatalf("%d attempts, want %d", len(writes), test.attempts)
				}
				for i, w := range writes {
					if want := (commit.Write{ID: writes[0].ID, Again: i > 0, Uncertain: uncertain(test.steps[:i])}); w != want || w.ID == "" {
						t.Errorf("attempt %d was given %+v, want %+v", i, w, want)
					}
				}
			})
		})
	}
}

// uncertain reports whether one of the steps lost its answer.
func uncertain(steps []step) bool {
	return slices.Contains(steps, lostSend)
}

func TestLostRacesAreRepeatedUntilTheTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Minute
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		writes, err := run(ctx, lost)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != limit {
			t.Errorf("gave up after %s, want %s", took, limit)
		}
		if least := int(limit / commit.LongestWait); len(writes) < least {
			t.Errorf("%d attempts in %s, want at least %d", len(writes), limit, least)
		}
		for _, w := range writes {
			if w.ID != writes[0].ID {
				t.Fatalf("given %+v after %+v", w, writes[0])
			}
		}
	})
}

func TestTheWaitsGrowToTheLongestAndNoFurther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds, attempts = 200, 12
		longest := make([]time.Duration, attempts)
		for range rounds {
			last, n := time.Now(), 0
			err := commit.Until(t.Context(), func(context.Context, commit.Write) (bool, error) {
				longest[n] = max(longest[n], time.Since(last))
				last, n = time.Now(), n+1
				return n == attempts, nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if longest[0] != 0 {
			t.Errorf("the first attempt waited %s", longest[0])
		}
		bound := commit.FirstWait
		for i, wait := range longest[1:] {
			// Of 200 random waits the longest is hardly ever below half the bound.
			if wait >= bound || wait < bound/2 {
				t.Errorf("before attempt %d at most %s, want just under %s", i+1, wait, bound)
			}
			bound = min(2*bound, commit.LongestWait)
		}
	})
}

func TestTheEndOfTheContextEndsAWaitAtOnce(t *testing.T) {
	errAway := errors.New("the client is gone")
	for name, test := range map[string]struct {
		step     step
		endAfter time.Duration // the attempt
		want     error
	}{
		"during a lost race":              {lost, 0, context.Canceled},
		"in the wait after a lost race":   {lost, 1, context.Canceled},
		"during an attempt that failed":   {lostSend, 0, lostSend.err},
		"in the wait after a lost answer": {lostSend, 1, lostSend.err},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				start, attempts := time.Now(), 0
				err := commit.Until(ctx, func(context.Context, commit.Write) (bool, error) {
					attempts++
					if test.endAfter == 0 {
						cancel(errAway)
					} else {
						time.AfterFunc(test.endAfter, func() { cancel(errAway) })
					}
					return test.step.done, test.step.err
				})
				if !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if attempts != 1 || time.Since(start) >= commit.FirstWait {
					t.Errorf("%d attempts in %s", attempts, time.Since(start))
				}
			})
		})
	}
}

func TestAnAttemptThatIsDoneCountsThoughTheContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if writes, err := run(ctx, done); err != nil || len(writes) != 1 {
		t.Errorf("got %v after %d attempts", err, len(writes))
	}
}

func TestAttemptsAreGivenTheContext(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	err := commit.Until(ctx, func(ctx context.Context, _ commit.Write) (bool, error) {
		if ctx.Value(key{}) != "value" {
			t.Error("got another context")
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEachChangeHasItsOwnID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		writes, err := run(t.Context(), done)
		if err != nil || seen[writes[0].ID] {
			t.Fatalf("got %q again, %v", writes[0].ID, err)
		}
		seen[writes[0].ID] = true
	}
}
