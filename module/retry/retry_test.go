package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/retry"
)

func TestASleepEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit time.Duration
		took  time.Duration
		err   error
	}{
		"in time":   {time.Minute, 3 * time.Second, nil},
		"too late":  {time.Second, time.Second, context.DeadlineExceeded},
		"has ended": {0, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.limit)
				defer cancel()
				began := time.Now()
				if err := retry.Sleep(ctx, 3*time.Second); !errors.Is(err, test.err) || time.Since(began) != test.took {
					t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), test.err, test.took)
				}
			})
		})
	}
}

func TestTheWaitsDoubleUntilACallHasWorked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const shortest, longest = 100 * time.Millisecond, time.Second
		waits := []time.Duration{shortest, 2 * shortest, 4 * shortest, 8 * shortest, longest, longest, shortest, 2 * shortest}
		const works = 6 // the call before the seventh wait
		ctx, cancel := context.WithCancel(t.Context())
		calls, last := 0, time.Now()
		retry.Repeat(ctx, shortest, longest, func() bool {
			if took := time.Since(last); calls > 0 && (took < waits[calls-1]/2 || took >= waits[calls-1]*3/2) {
				t.Errorf("wait %d was %v, want about %v", calls, took, waits[calls-1])
			}
			calls, last = calls+1, time.Now()
			if calls > len(waits) {
				cancel()
			}
			return calls-1 == works
		})
		if calls != len(waits)+1 {
			t.Errorf("%d calls, want %d", calls, len(waits)+1)
		}
	})
}
