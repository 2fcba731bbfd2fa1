package match

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/mxid"
)

// Member is a member of a room, for [EvaluateAll].
type Member struct {
	User        mxid.UserID
	DisplayName string // as in [Facts]

	// Power is the member's power level in the room, for the condition
	// recipient_permission; nil if it is not known. [CreatorPower] is the level of a
	// creator in room version 12 and later. Members may share a pointer.
	Power *int64

	Rules *Rules // nil: the member gets no result
}

// CreatorPower is a power level above all others.
const CreatorPower = math.MaxInt64

// bulkStep is the number of members that a worker takes at a time.
const bulkStep = 256

// bulkPause is the work after which a worker checks the context and yields to other
// goroutines, such as the context's timer: a fraction of a millisecond.
const bulkPause = 1 << 16

// EvaluateAll evaluates an event for members of a room, on up to GOMAXPROCS cores. It
// returns a result for each member, in their order. Members with a set from the same
// [Cache] share it if it differs only in the user's id: EvaluateAll evaluates a shared
// set once for all members with equal facts. If the context ends first, it returns the
// context's error within some milliseconds.
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
	subject subject                // with the member that is evaluated
	results map[*Rules]*bulkResult // the first of each set
	last    *Rules                 // the set of the previous member, and its first result
	found   *bulkResult
	work    int // since the last pause
}

// maxShared bounds the results that are kept for a shared set.
const maxShared = 4

// bulkResult is the result of a shared set for all members with the noted outcomes of
// the conditions about the member.
type bulkResult struct {
	result Result
	notes  []note
	next   *bulkResult // of the same set
}

// evaluate fills in the results of members, until the context ends.
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
	if m.Rules.shared {
		if m.Rules != w.last {
			w.last, w.found = m.Rules, w.results[m.Rules]
		}
		if w.found != nil && len(w.found.notes) == 0 { // no condition is about the member
			return w.found.result
		}
	}
	w.subject.setUser(m.User, m.DisplayName, m.Power)
	result := w.evaluateFor(m.Rules)
	w.work += maxWork - w.subject.meter.left
	return result
}

// evaluateFor evaluates a set for the subject's user, unless a kept result is also
// the user's.
func (w *bulkWorker) evaluateFor(rules *Rules) Result {
	if !rules.shared {
		return rules.evaluate(&w.subject)
	}
	kept, last := 0, (*bulkResult)(nil)
	for r := w.found; r != nil; kept, last, r = kept+1, r, r.next {
		if w.subject.agrees(r.notes) {
			return r.result
		}
	}
	switch {
	case kept == 0:
		w.found = w.evaluateShared(rules)
		w.results[rules] = w.found
		return w.found.result
	case kept < maxShared:
		last.next = w.evaluateShared(rules)
		return last.next.result
	}
	return rules.evaluate(&w.subject)
}

// evaluateShared evaluates a shared set, and notes the conditions about the member.
func (w *bulkWorker) evaluateShared(rules *Rules) *bulkResult {
	shared := &bulkResult{}
	w.subject.notes = &shared.notes
	shared.result = rules.evaluate(&w.subject)
	w.subject.notes = nil
	return shared
}
