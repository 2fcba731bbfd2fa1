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

// bulkStep is how many members a worker takes at a time.
const bulkStep = 256

// bulkPause is the work after which a worker looks at the context and lets
// others run, the context's timer among them. It takes a fraction of a
// millisecond; the slowest evaluation takes some milliseconds.
const bulkPause = 1 << 16

// EvaluateAll evaluates an event for members of a room and returns a result
// for each, in their order. It uses as many cores as the process may
// (GOMAXPROCS). What does not differ between members who share a set, as they
// do who have it out of one [Cache], is evaluated once. If the context ends
// before, it returns within some milliseconds, with the context's error and no
// result.
func EvaluateAll(ctx context.Context, event *Event, room Room, members []Member) ([]Result, error) {
	results := make([]Result, len(members))
	steps := (len(members) + bulkStep - 1) / bulkStep
	workers := min(runtime.GOMAXPROCS(0), steps)
	var taken atomic.Int64
	var wait sync.WaitGroup
	work := func() {
		w := bulkWorker{results: map[*Rules]*bulkResult{}}
		w.subject = newSubject(event, Facts{Room: room})
		for ctx.Err() == nil {
			start := int(taken.Add(1)-1) * bulkStep
			if start >= len(members) {
				return
			}
			end := min(start+bulkStep, len(members))
			w.evaluate(ctx, members[start:end], results[start:end])
		}
	}
	for range workers - 1 {
		wait.Go(work)
	}
	work()
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return results, nil
}

// bulkWorker evaluates one event for many members.
type bulkWorker struct {
	subject subject // with the member that is evaluated
	results map[*Rules]*bulkResult
	last    *Rules // the set that was asked for last, and its result
	found   *bulkResult
	work    int // since the last pause
}

// bulkResult is the result of a set for all those for whom none of some
// conditions holds.
type bulkResult struct {
	result Result
	unless notes
}

// evaluate fills in the results of members. It stops early if the context ends.
func (w *bulkWorker) evaluate(ctx context.Context, members []Member, results []Result) {
	sender, sent := w.subject.event.text(&wellKnown[slotSender])
	for i := range members {
		if m := &members[i]; m.Rules != nil && !(sent && string(m.User) == sender) {
			results[i] = w.resultFor(m)
		}
		if w.work += memberWork; w.work > bulkPause {
			w.work = 0
			runtime.Gosched()
			if ctx.Err() != nil {
				return
			}
		}
	}
}

func (w *bulkWorker) resultFor(m *Member) Result {
	shared := w.sharedResult(m.Rules)
	if shared != nil && len(shared.unless.conditions) == 0 {
		return shared.result
	}
	w.subject.setUser(m.User, m.DisplayName)
	result := w.evaluateFor(m.Rules, shared)
	w.work += maxWork - w.subject.meter.left
	return result
}

// sharedResult returns what is kept of a shared set, nil if there is nothing.
func (w *bulkWorker) sharedResult(rules *Rules) *bulkResult {
	if !rules.shared {
		return nil
	}
	if rules != w.last {
		w.last, w.found = rules, w.results[rules]
	}
	return w.found
}

// evaluateFor evaluates a set for the subject's user.
func (w *bulkWorker) evaluateFor(rules *Rules, shared *bulkResult) Result {
	switch {
	case !rules.shared:
		return rules.evaluate(&w.subject)
	case shared == nil:
		return w.evaluateShared(rules)
	}
	for _, c := range shared.unless.conditions {
		w.subject.meter.spend(c.work())
		if c.holds(&w.subject) {
			return rules.evaluate(&w.subject)
		}
	}
	return shared.result
}

// evaluateShared evaluates a shared set, and keeps the result if no condition
// holds that is about the user.
func (w *bulkWorker) evaluateShared(rules *Rules) Result {
	shared := &bulkResult{}
	w.subject.notes = &shared.unless
	shared.result = rules.evaluate(&w.subject)
	w.subject.notes = nil
	if !shared.unless.anyHeld {
		w.results[rules], w.found = shared, shared
	}
	return shared.result
}
