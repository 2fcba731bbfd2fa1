package match

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/mxid"
)

// Member is a member of a room for whom an event is evaluated.
type Member struct {
	User        mxid.UserID
	DisplayName string // as in [Facts]
	Rules       *Rules // nil: nothing is done for this member
}

// bulkStep is how many members are evaluated between two looks at the context.
const bulkStep = 1024

// EvaluateAll evaluates an event for members of a room and returns a result
// for each, in their order. It uses as many cores as the process may
// (GOMAXPROCS). What does not differ between members who share a set, as they
// do who have it out of one [Cache], is evaluated once. It returns the error of
// the context, and no result, if that ends before.
func EvaluateAll(ctx context.Context, event *Event, room Room, members []Member) ([]Result, error) {
	results := make([]Result, len(members))
	steps := (len(members) + bulkStep - 1) / bulkStep
	workers := min(runtime.GOMAXPROCS(0), steps)
	var taken atomic.Int64
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			w := bulkWorker{event: event, room: room, known: map[*Rules]Result{}}
			for ctx.Err() == nil {
				start := int(taken.Add(1)-1) * bulkStep
				if start >= len(members) {
					return
				}
				end := min(start+bulkStep, len(members))
				w.evaluate(members[start:end], results[start:end])
			}
		})
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return results, nil
}

// bulkWorker evaluates one event for many members.
type bulkWorker struct {
	event *Event
	room  Room
	known map[*Rules]Result // of sets whose result is the same for all their members

	last       *Rules // the last of these sets, and its result
	lastResult Result
}

func (w *bulkWorker) evaluate(members []Member, results []Result) {
	sender, sent := w.event.text(&wellKnown.keys[slotSender])
	for i := range members {
		m := &members[i]
		switch {
		case m.Rules == nil || sent && string(m.User) == sender:
		case m.Rules == w.last:
			results[i] = w.lastResult
		default:
			results[i] = w.first(m)
		}
	}
}

// first evaluates for a member, if that was not done for another one with the
// same set before.
func (w *bulkWorker) first(m *Member) Result {
	if m.Rules.shared {
		if result, found := w.known[m.Rules]; found {
			w.last, w.lastResult = m.Rules, result
			return result
		}
	}
	facts := Facts{User: m.User, DisplayName: m.DisplayName, Room: w.room}
	s := subject{event: w.event, facts: &facts}
	result := Result{m.Rules.first(&s)}
	if m.Rules.shared && !s.personal {
		w.known[m.Rules] = result
		w.last, w.lastResult = m.Rules, result
	}
	return result
}
