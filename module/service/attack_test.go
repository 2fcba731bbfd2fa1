package service_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/service"
)

const lists = "lists"

// call is a call of a user's app, in a history of calls about one pushkey.
type call struct {
	act
	began, ended int    // logical times
	acked        bool   // otherwise it may have had an effect
	saw          string // what a list shows: the text of the pusher, or nothing
}

func (c call) String() string {
	return fmt.Sprintf("\n%d-%d %v, acked %t, saw %q", c.began, c.ended, c.act, c.acked, c.saw)
}

// history records calls. Each pusher has a text of its own.
type history struct {
	mu    sync.Mutex
	time  int
	calls []call
}

func (h *history) tick() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.time++
	return h.time
}

func (h *history) record(c call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

// textOf identifies the pusher that a call sets.
func textOf(c call) string { return fmt.Sprint("set at ", c.began) }

// do makes a call on one of three hosts.
func (h *history) do(ctx context.Context, c caller, a act, host int) error {
	ahead := []time.Duration{0, time.Minute, -time.Minute}[host]
	stores := module.Stores{Pushers: c, Pushkeys: c.index(), Now: func() time.Time { return time.Now().Add(ahead) }}
	services := service.New(stores, nil, usual()).Pushers()
	stores.Rules = rulesOf(found(pushrule.Ruleset{}))
	made := call{act: a, began: h.tick()}
	var err error
	switch a.verb {
	case takes:
		err = services.Set(ctx, a.user, pusherOf(textOf(made)), pusher.RemoveOthers)
	case appends:
		err = services.Set(ctx, a.user, pusherOf(textOf(made)), pusher.KeepOthers)
	case deletes:
		err = services.Delete(ctx, a.user, thePushkey)
	case imports:
		var result module.ImportResult
		from := module.Import{Pushers: []pusher.Pusher{pusherOf(textOf(made))}}
		if result, err = hostOn(stores, nil, usual()).Import(ctx, a.user, from, module.StoreImport); result.Refused() > 0 {
			err = pusher.ErrTaken
		}
	default:
		var list pusher.List
		list, err = services.List(ctx, a.user)
		p, _ := list.Pusher(thePushkey)
		made.saw = p.Lang
	}
	made.ended = h.tick()
	err = cmp.Or(err, c.wait(theApp)) // a host that has died does not answer
	if made.acked = err == nil; made.acked || a.verb != lists {
		h.record(made)
	}
	return err
}

// theApp is a turn without an operation of a store.
var theApp = turn{"the app", false}

var errLostReply = errors.New("the reply is lost")

// attack lets apps make calls about one pushkey in a random order, with faults in the stores.
func attack(ctx context.Context, random *rand.Rand, verbs []string, repeat bool) (*memory, *history) {
	m, h := newMemory(), &history{}
	users := []mxid.UserID{alice, bob, carol, dave}[:2+random.IntN(3)]
	var runs []*running
	for range 3 {
		var acts []act
		for range 1 + random.IntN(3) {
			acts = append(acts, act{users[random.IntN(len(users))], verbs[random.IntN(len(verbs))]})
		}
		host := random.IntN(3)
		runs = append(runs, start(ctx, m, func(ctx context.Context, c caller) error {
			for _, a := range acts {
				for h.do(ctx, c, a, host) != nil && repeat {
				}
			}
			return nil
		}))
	}
	kills := random.IntN(3)
	for {
		waiting := slices.DeleteFunc(slices.Clone(runs), func(r *running) bool { return r.ended })
		if len(waiting) == 0 {
			return m, h
		}
		run := waiting[random.IntN(len(waiting))]
		n := random.IntN(len(run.waiting))
		next := run.waiting[n].turn
		mayFail := next != theApp && next != (turn{entryTurn, false}) // a list shows a pusher without its entry
		switch chance := random.IntN(20); {
		case chance == 0 && kills > 0 && !repeat:
			run.kill()
			kills--
		case chance == 1 && mayFail:
			run.answer(n, errDied)
		case chance == 2 && mayFail:
			run.answer(n, errLostReply)
		default:
			run.answer(n, nil)
		}
	}
}

// moment is a part of a call that takes effect at once.
type moment struct {
	call int
	part string // "hide", "set", "delete", "see" or "import"
}

// status is what a user has: a pusher that is visible, hidden or absent. A take that has hidden the
// others' pushers revives the user's own. A pusher that is or was hidden may go at any time.
type status struct {
	text           string // of the stored pusher, or nothing
	hidden, revive bool
}

// explains searches an order of the moments of calls that leaves what their lists have seen.
type explains struct {
	calls   []call
	moments []moment
	failed  map[string]bool
}

func explained(calls []call) bool {
	e := explains{calls: calls, failed: map[string]bool{}}
	parts := map[string][]string{takes: {"hide", "set"}, appends: {"set"}, deletes: {"delete"}, lists: {"see"}, imports: {"import"}}
	for i, c := range calls {
		for _, part := range parts[c.verb] {
			e.moments = append(e.moments, moment{i, part})
		}
	}
	return e.search(make([]byte, len(e.moments)), map[mxid.UserID]status{}, "")
}

// The states of a moment. A skipped moment is one of a call that was not acked.
const (
	isAhead = iota
	isDone
	isSkipped
)

// search tries each moment that can be next. Overtaken names the takes whose pushers another
// take has hidden before they were stored.
func (e *explains) search(progress []byte, now map[mxid.UserID]status, overtaken string) bool {
	key := fmt.Sprint(progress, now, overtaken)
	if e.failed[key] {
		return false
	}
	left := false
	for i, m := range e.moments {
		if progress[i] != isAhead {
			continue
		}
		left = true
		if !e.isNext(progress, i) {
			continue
		}
		for _, next := range e.after(m, now, overtaken, progress) {
			done := slices.Clone(progress)
			done[i] = isDone
			if e.search(done, next.now, next.overtaken) {
				return true
			}
		}
		if !e.calls[m.call].acked {
			done := slices.Clone(progress)
			for j, n := range e.moments {
				if n.call == m.call && done[j] == isAhead {
					done[j] = isSkipped
				}
			}
			if e.search(done, now, overtaken) {
				return true
			}
		}
	}
	e.failed[key] = true
	return !left
}

// isNext reports whether no moment that is ahead must come before: of the same call, or of a
// call that ended before this one began.
func (e *explains) isNext(progress []byte, i int) bool {
	for j, m := range e.moments {
		isBefore := m.call == e.moments[i].call && j < i || e.calls[m.call].ended < e.calls[e.moments[i].call].began
		if progress[j] == isAhead && isBefore {
			return false
		}
	}
	return true
}

type outcome struct {
	now       map[mxid.UserID]status
	overtaken string
}

func (e *explains) after(m moment, now map[mxid.UserID]status, overtaken string, progress []byte) []outcome {
	c, own := e.calls[m.call], now[e.calls[m.call].user]
	with := func(s status) map[mxid.UserID]status {
		next := maps.Clone(now)
		next[c.user] = s
		return next
	}
	number := fmt.Sprintf("<%d>", m.call)
	switch m.part {
	case "set":
		return []outcome{{with(status{text: textOf(c), hidden: strings.Contains(overtaken, number)}), overtaken}}
	case "import":
		imported := outcome{with(status{text: textOf(c)}), overtaken}
		switch {
		case own.revive:
			return []outcome{{now, overtaken}, imported}
		case own.text != "" && !own.hidden:
			return []outcome{{now, overtaken}}
		}
		return []outcome{imported}
	case "delete":
		return []outcome{{with(status{}), overtaken}}
	case "see":
		switch {
		case c.saw == "" && (own.text == "" || own.hidden):
			return []outcome{{now, overtaken}}
		case c.saw == "" && own.revive:
			return []outcome{{with(status{}), overtaken}}
		case c.saw != "" && c.saw == own.text && !own.hidden:
			return []outcome{{now, overtaken}}
		}
		return nil
	}
	next := maps.Clone(now)
	for user, s := range next {
		if user != c.user && s.text != "" {
			s.hidden, s.revive = true, false
			next[user] = s
		}
	}
	for i, other := range e.moments {
		isHalf := other.part == "set" && progress[i] == isAhead && i > 0 && progress[i-1] == isDone && e.moments[i-1].part == "hide"
		if name := fmt.Sprintf("<%d>", other.call); isHalf && e.calls[other.call].user != c.user && !strings.Contains(overtaken, name) {
			overtaken += name
		}
	}
	if own.hidden {
		next[c.user] = status{text: own.text, revive: true}
	}
	return []outcome{{next, overtaken}}
}

const attacks = 3000

// Users take a pushkey from each other, share, import and delete it on three hosts. Stores fail before and
// after a change, and hosts die.
func TestAttacksOnAPushkeyAreExplained(t *testing.T) {
	t.Parallel()
	orders := attacks
	if testing.Short() {
		orders /= 10
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(orders) {
			m, h := attack(t.Context(), rand.New(rand.NewPCG(seed, 1)), []string{takes, takes, takes, appends, appends, deletes, deletes, lists, lists, imports}, false)
			for _, user := range []mxid.UserID{alice, bob, carol, dave} {
				if err := h.do(t.Context(), m.caller(), act{user, lists}, 0); err != nil {
					t.Fatal(err)
				}
			}
			if !explained(h.calls) {
				t.Fatalf("seed %d: no order explains %v", seed, h.calls)
			}
		}
	})
}

// All users take the pushkey, and repeat what has failed.
func TestOneUserHasThePushkeyAfterAttacks(t *testing.T) {
	t.Parallel()
	orders := attacks
	if testing.Short() {
		orders /= 10
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(orders) {
			m, h := attack(t.Context(), rand.New(rand.NewPCG(seed, 2)), []string{takes}, true)
			if owners := m.owners(thePushkey); len(owners) != 1 {
				t.Fatalf("seed %d: owned by %v after %v", seed, owners, h.calls)
			}
		}
	})
}
