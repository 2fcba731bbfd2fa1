package match

import (
	"context"
	"math"
	"runtime"
	"slices"
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
	results, _, err := EvaluateCached(ctx, event, room, members, nil)
	return results, err
}

// EvaluateCached is [EvaluateAll] for members whose rules may be in a [Cache]: unless entries
// are nil, each member has one, and a member without Rules has those of the entry. Such a set
// is in use during its evaluation alone, so that an eviction frees its memory. EvaluateCached
// also returns the indexes of members whose entry is not nil and evicted, in order; they have
// the zero Result.
func EvaluateCached(
	ctx context.Context, event *Event, room Room, members []Member, entries []*Entry,
) (results []Result, evicted []int, err error) {
	results = make([]Result, len(members))
	var mu sync.Mutex // of evicted
	steps := (len(members) + bulkStep - 1) / bulkStep
	workers := min(runtime.GOMAXPROCS(0), steps)
	var taken atomic.Int64
	var wait sync.WaitGroup
	work := func() {
		w := bulkWorker{members: members, entries: entries, results: map[*Rules]*bulkResult{}}
		w.subject = newSubject(event, Facts{Room: room})
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			evicted = append(evicted, w.evicted...)
		}()
		for ctx.Err() == nil {
			start := int(taken.Add(1)-1) * bulkStep
			if start >= len(members) {
				return
			}
			w.evaluate(ctx, start, results[start:min(start+bulkStep, len(members))])
		}
	}
	for range workers - 1 {
		wait.Go(work)
	}
	work()
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	slices.Sort(evicted)
	return results, evicted, nil
}

type bulkWorker struct {
	members []Member
	entries []*Entry // nil, or of the members
	evicted []int

	subject subject                // the event, and the current member
	results map[*Rules]*bulkResult // the first result of each shared set
	last    *Rules                 // the shared set of the previous member
	found   *bulkResult            // the first result of last
	work    int                    // since the last pause
}

const (
	maxShared = 4 // results of a set

	// A worker remembers the results of maxSets sets of at most maxSharedBytes of JSON, which
	// it keeps in memory.
	maxSets        = 32
	maxSharedBytes = 16 << 10
)

// bulkResult is one result of a shared set. It is valid for every member for whom the
// conditions in notes have the noted outcome.
type bulkResult struct {
	result Result
	notes  []note
	next   *bulkResult // the next result of the set
}

func (w *bulkWorker) evaluate(ctx context.Context, start int, results []Result) {
	sender, sent := w.subject.event.text(&wellKnown[slotSender])
	for i := range results {
		m := &w.members[start+i]
		if rules := w.rulesOf(start + i); rules != nil && !(sent && string(m.User) == sender) {
			results[i] = w.resultFor(m, rules)
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

func (w *bulkWorker) rulesOf(at int) *Rules {
	if given := w.members[at].Rules; given != nil || w.entries == nil || w.entries[at] == nil {
		return given
	}
	rules := w.entries[at].Rules()
	if rules == nil {
		w.evicted = append(w.evicted, at)
	}
	return rules
}

// resultFor returns the result of a member's rules. Members with the same shared set are
// often next to each other, so the worker keeps the first result of the last set. If no
// condition of that result is about the member, the result is valid for all members.
func (w *bulkWorker) resultFor(m *Member, rules *Rules) Result {
	if rules.shared {
		if rules != w.last {
			w.last, w.found = rules, w.results[rules]
		}
		if isForAll := w.found != nil && len(w.found.notes) == 0; isForAll {
			return w.found.result
		}
	}
	w.subject.setUser(m.User, m.DisplayName, m.Power)
	result := w.evaluateOrReuse(rules)
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
		if len(w.results) == maxSets {
			clear(w.results)
		}
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
