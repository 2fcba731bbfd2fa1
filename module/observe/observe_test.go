package observe_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

func TestTheObserverIsOptional(t *testing.T) {
	t.Parallel()
	for _, o := range []observe.Observer{observe.None, observe.Or(nil)} {
		if o != observe.None {
			t.Errorf("got %T", o)
		}
		ctx, end := o.Begin(t.Context(), &observe.Operation{})
		end(observe.Outcome{})
		o.Count(observe.LostRace, "", 1)
		o.Report(observe.RedisEvicts, nil)
		_, endPost := o.BeginPost(t.Context(), "https://push.example.org:443", o.Traceparent(t.Context()))
		endPost("delivered", 200)
		o.Took(observe.ChangeLag, "", 0, false)
		if ctx != t.Context() {
			t.Error("the context is another")
		}
	}
}

func TestACanceledRequestIsNoFailure(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	cause := errors.New("cause")
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		want bool
	}{
		{"canceled, store not reached", canceled, fault.Wrap(fault.Unavailable, "", cause), true},
		{"canceled, an error of the host's own", canceled, cause, true},
		{"canceled, done all the same", canceled, nil, false},
		{"canceled, refused", canceled, fault.New(fault.NotFound, ""), false},
		{"canceled, data that cannot be read", canceled, fault.New(fault.Database, ""), false},
		{"out of time", late, fault.Wrap(fault.Unavailable, "", context.DeadlineExceeded), false},
		{"store not reached", t.Context(), fault.Wrap(fault.Unavailable, "", context.Canceled), false},
	} {
		if got := (observe.Outcome{Err: test.err}).CallerGone(test.ctx); got != test.want {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
}

func TestEachEventHasAName(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{"": true}
	for _, event := range append(observe.Events(), -1) {
		if seen[event.String()] {
			t.Errorf("event %d is %q", event, event)
		}
		seen[event.String()] = true
	}
}

func TestEachProblemHasALine(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{"": true}
	for _, problem := range append(observe.Problems(), -1) {
		if seen[problem.String()] {
			t.Errorf("problem %d is %q", problem, problem)
		}
		seen[problem.String()] = true
	}
}
