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
			w := bulkWorker{event: event, room: room, known: map[*Rules]*bulkResult{}}
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
	known map[*Rules]*bulkResult
	last  *Rules // the one that was asked for last, and what is known of it
	found *bulkResult
}

// bulkResult is the result of a set for all those for whom none of some
// conditions holds.
type bulkResult struct {
	result Result
	unless notes
}

func (w *bulkWorker) evaluate(members []Member, results []Result) {
	sender, sent := w.event.text(&wellKnown.keys[slotSender])
	for i := range members {
		if m := &members[i]; m.Rules != nil && !(sent && string(m.User) == sender) {
			results[i] = w.resultFor(m)
		}
	}
}

func (w *bulkWorker) resultFor(m *Member) Result {
	s := subject{event: w.event, facts: Facts{User: m.User, DisplayName: m.DisplayName, Room: w.room}}
	if !m.Rules.shared {
		return Result{m.Rules.first(&s)}
	}
	if m.Rules != w.last {
		w.last, w.found = m.Rules, w.known[m.Rules]
	}
	if w.found == nil {
		return w.learn(m.Rules, &s)
	}
	for _, c := range w.found.unless.conditions {
		if c.holds(&s) {
			return Result{m.Rules.first(&s)}
		}
	}
	return w.found.result
}

// learn evaluates a set for the first member who has it, or for the first for
// whom no condition holds that is about the user.
func (w *bulkWorker) learn(rules *Rules, s *subject) Result {
	learned := &bulkResult{}
	s.notes = &learned.unless
	learned.result = Result{rules.first(s)}
	if !learned.unless.anyHeld {
		w.known[rules], w.found = learned, learned
	}
	return learned.result
}
