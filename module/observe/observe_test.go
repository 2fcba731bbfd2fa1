package observe_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

// notebook is an observer that writes down what it is told.
type notebook struct {
	name  string
	notes *[]string
}

type nameKey struct{}

func (n notebook) note(what ...string) {
	*n.notes = append(*n.notes, n.name+" "+strings.Join(what, " "))
}

func (n notebook) Begin(ctx context.Context, op *observe.Operation) (context.Context, func(observe.Outcome)) {
	before, _ := ctx.Value(nameKey{}).(string)
	n.note("begins", op.Verb, op.Name, "after", before)
	return context.WithValue(ctx, nameKey{}, n.name), func(o observe.Outcome) { n.note("ends", o.Err.Error()) }
}

func (n notebook) Count(event observe.Event, store string) { n.note(event.String(), store) }

func (n notebook) Took(_ observe.Span, store string, took time.Duration, _ bool) {
	n.note(store, took.String())
}

func TestAllWhoAreJoinedAreTold(t *testing.T) {
	t.Parallel()
	var notes []string
	all := observe.Join(notebook{"a", &notes}, notebook{"b", &notes})
	ctx, end := all.Begin(t.Context(), &observe.Operation{Kind: observe.Store, Name: observe.Pushers, Verb: "load"})
	end(observe.Outcome{Err: errors.New("lost")})
	all.Count(observe.LostRace, observe.Pushkeys)
	all.Took(observe.ChangeLag, "", time.Second, true)
	want := []string{
		"a begins load pushers after ", "b begins load pushers after a", "a ends lost", "b ends lost",
		"a lost_race pushkeys", "b lost_race pushkeys", "a  1s", "b  1s",
	}
	if !slices.Equal(notes, want) || ctx.Value(nameKey{}) != "b" {
		t.Errorf("got %q", notes)
	}
}

func TestNobodyNeedsToBeTold(t *testing.T) {
	t.Parallel()
	for _, o := range []observe.Observer{observe.Join(), observe.Join(observe.None, observe.None), observe.Or(nil)} {
		if o != observe.None {
			t.Errorf("got %T", o)
		}
		ctx, end := o.Begin(t.Context(), &observe.Operation{})
		end(observe.Outcome{})
		o.Count(observe.LostRace, "")
		o.Took(observe.ChangeLag, "", 0, false)
		if ctx != t.Context() {
			t.Error("the context is another")
		}
	}
}

func TestWhoIsGoneHasNotMetAFailure(t *testing.T) {
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
