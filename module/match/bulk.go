package match

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/mxid"
)

// Member is a member of a room.
type Member struct {
	User        mxid.UserID
	DisplayName string // as in [Facts]

	// Power is the member's power level in the room, nil if unknown. Creators have
	// [CreatorPower] in room version 12 and later. Members may share a pointer.
	Power *int64

	// Rules are the member's compiled rules. If they are nil, Notifier.Decide loads the
	// member's stored rules; [EvaluateAll] loads nothing and returns the zero Result
	// for the member.
	Rules *Rules
}

// CreatorPower is a power level above all others.
const CreatorPower = math.MaxInt64

const bulkStep = 256

// After bulkPause units of work, a fraction of a millisecond, a worker yields the core
// and checks the context.
const bulkPause = 1 << 16

// EvaluateAll evaluates an event for members of a room, on up to GOMAXPROCS cores, and
// returns the results in the order of the members. Members with the same compiled set
// of a [Cache] share a result if their conditions about the member have the same
// outcome. If the context ends first, EvaluateAll returns the context's error within
// milliseconds, and no results.
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

type bulkWorker struct {
	subject subject                // the event, and the current member
	results map[*Rules]*bulkResult // the first result of each shared set
	last    *Rules                 // the shared set of the previous member
	found   *bulkResult            // the first result of last
	work    int                    // since the last pause
}

const maxShared = 4

// bulkResult is one result of a shared set. It is valid for every member for whom the
// conditions in notes have the noted outcome.
type bulkResult struct {
	result Result
	notes  []note
	next   *bulkResult // the next result of the set
}

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

// resultFor returns the result of a member's rules. Members with the same shared set are
// often next to each other, so the worker keeps the first result of the last set. If no
// condition of that result is about the member, the result is valid for all members.
func (w *bulkWorker) resultFor(m *Member) Result {
	if m.Rules.shared {
		if m.Rules != w.last {
			w.last, w.found = m.Rules, w.results[m.Rules]
		}
		if isForAll := w.found != nil && len(w.found.notes) == 0; isForAll {
			return w.found.result
		}
	}
	w.subject.setUser(m.User, m.DisplayName, m.Power)
	result := w.evaluateOrReuse(m.Rules)
	w.work += maxWork - w.subject.meter.left
	return result
}

// evaluateOrReuse returns a result of the set that is valid for the member, or else
// evaluates the set.
func (w *bulkWorker) evaluateOrReuse(rules *Rules) Result {
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

func (w *bulkWorker) evaluateShared(rules *Rules) *bulkResult {
	shared := &bulkResult{}
	w.subject.notes = &shared.notes
	shared.result = rules.evaluate(&w.subject)
	w.subject.notes = nil
	return shared
}
