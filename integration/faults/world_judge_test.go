package faults

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// judge checks that every user's history is linearizable.
//
// After a crash of a master, Redis promises less, whatever the durability. A master shows a change before a
// replica has it, so a client can read a change that is never acknowledged and disappears in the takeover. A
// frozen master that was replaced answers with old values until it learns of the takeover. So for the users of a
// crashed master, reads and refusals between the crash and the end of its effects do not count. Acknowledged
// changes always count.
func (h *ruleHistory) judge(ctx context.Context, s *strike) error {
	if err := h.lookAtAll(ctx); err != nil {
		return err
	}
	if h.ledger {
		kept, lost := h.ownEntries()
		s.t.Logf("%s, durability %s: %d acknowledged entries are kept, %d lost", s, h.durability, kept, lost)
		if isControl := h.durability == (rediscommit.Durability{}); isControl != (lost > 0) {
			s.t.Errorf("%d entries are lost", lost)
		}
		return nil
	}
	moved, err := movedUsers(ctx, s)
	if err != nil {
		return err
	}
	if len(moved) > 0 && h.durability.Replicas == 0 {
		s.t.Logf("%s: not judged, since the cluster took a slow server for dead", s)
		return nil
	}
	s.hit = append(s.hit, moved...)
	v := h.verdict(s, s.crash || len(moved) > 0)
	s.t.Logf("%s, durability %s, lossy %t: %d operations, %d unknown; of %d users %d histories are not linearizable, %d undecided; no change for %v at most",
		s, h.durability, s.lossy, v.operations, v.unknown, len(h.users), len(v.illegal), len(v.undecided), v.outage)
	if h.answered && v.unknown > 0 {
		s.t.Errorf("%s: %d requests failed", s, v.unknown)
	}
	if v.unknown > v.operations/4 && h.length > 0 {
		s.t.Error("too few answers to show anything")
	}
	if kept, lost := h.ownEntries(); v.isBad() || lost > 0 {
		s.t.Errorf("%s: %d of %d own entries are lost, the history is not linearizable, or its check takes too long", s, lost, lost+kept)
		showIllegal(s.t, slices.Concat(v.illegal...))
	}
	return nil
}

// ownEntries counts the acknowledged entries that clients have not deleted, by the last look at them.
func (h *ruleHistory) ownEntries() (kept, lost int) {
	for _, u := range h.users {
		stored := ""
		for _, c := range h.clients {
			if c.of == u && c.number == chaosClients {
				stored = c.history[0].Output.(string)
			}
		}
		for _, c := range h.clients {
			for _, id := range c.mine {
				if c.of != u {
					continue
				}
				if strings.Contains(stored, id) {
					kept++
				} else {
					lost++
				}
			}
		}
	}
	return kept, lost
}

// movedUsers returns the users on an unexpected server, because the cluster replaced a server that was only slow.
func movedUsers(ctx context.Context, s *strike) (moved []*place, err error) {
	for _, p := range s.places {
		home, err := s.masterOf(ctx, p.slot())
		if err != nil {
			return nil, err
		}
		if p.home != nil && home != p.home {
			moved = append(moved, p)
		}
	}
	return moved, nil
}

type verdict struct {
	operations, unknown int
	illegal             [][]porcupine.Operation // histories of users that are not linearizable
	undecided           []string                // users whose check takes too long
	outage              time.Duration           // longest time without a change for a user of the fault
}

// isBad reports whether a promise was broken. A busy machine may leave one history undecided.
func (v verdict) isBad() bool { return len(v.illegal) > 0 || len(v.undecided) > 1 }

func (h *ruleHistory) verdict(s *strike, crashed bool) (v verdict) {
	for _, u := range h.users {
		history := h.of(u)
		isHit := slices.ContainsFunc(s.hit, func(p *place) bool { return p.name == u.name })
		v.operations += len(history)
		v.unknown += unanswered(history)
		if isHit {
			v.outage = max(v.outage, outageAfter(s.struck, history))
		}
		result := check(history)
		for _, end := range []int64{s.over, s.whole} { // success is always valid: a history without some of its reads stays linearizable
			if result != porcupine.Ok && crashed && isHit {
				history = acknowledged(h.of(u), s.struck, end)
				result = check(history)
			}
		}
		switch result {
		case porcupine.Ok:
		case porcupine.Illegal:
			v.illegal = append(v.illegal, history)
		default:
			v.undecided = append(v.undecided, u.name)
		}
	}
	return v
}

// outageAfter returns the longest time without an acknowledged change, since the start of the fault.
func outageAfter(struck int64, history []porcupine.Operation) (longest time.Duration) {
	times := []int64{struck}
	for _, o := range history {
		if o.Output == hosttest.Done && o.Return > struck {
			times = append(times, o.Return)
		}
	}
	slices.Sort(times)
	for i := range times[1:] {
		longest = max(longest, time.Duration(times[i+1]-times[i]))
	}
	return longest.Round(time.Millisecond)
}

// acknowledged removes the reads and refusals between from and to.
func acknowledged(history []porcupine.Operation, from, to int64) []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool {
		return o.Return >= from && o.Call <= to && o.Output != hosttest.Done && o.Output != unknown
	})
}

// defect is a defect of a store. A change either happens (do) or only gets its answer (pretend).
type defect func(do, pretend func() error) error

type flawedRules struct {
	module.RuleStore
	defect defect
}

func (s flawedRules) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (content module.Content, err error) {
	err = s.defect(
		func() error { content, err = s.RuleStore.Update(ctx, user, edit); return err },
		func() error {
			if content, err = s.Load(ctx, user); err != nil {
				return err
			}
			return edit(&content.Rules, content.Found())
		},
	)
	return content, err
}

type flawedPushers struct {
	module.PusherStore
	defect defect
}

func (s flawedPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	return s.defect(func() error { return s.PusherStore.Update(ctx, user, edit) }, func() error { return nil })
}

// The stores have defects; Redis has no faults.
func TestTheJudgeFindsLostAndRepeatedChanges(t *testing.T) {
	t.Parallel()
	sound := func(do, _ func() error) error { return do() }
	forgets := func(do, pretend func() error) error {
		return one(&randomClient{random: rand.New(rand.NewPCG(rand.Uint64(), 0))}, do, do, pretend)()
	}
	stutters := func(do, _ func() error) error {
		if err := do(); err != nil {
			return err
		}
		return do()
	}
	for name, test := range map[string]struct {
		defect defect
		of     *dataset
		bad    bool
	}{
		"rules of a sound store":       {sound, &ruleDataset, false},
		"pushers of a sound store":     {sound, &pusherDataset, false},
		"rules that are forgotten":     {forgets, &ruleDataset, true},
		"pushers that are forgotten":   {forgets, &pusherDataset, true},
		"rules that are changed twice": {stutters, &ruleDataset, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := hosttest.Embedded(t)
			var changes atomic.Int64
			counted := func(do, pretend func() error) error {
				changes.Add(1)
				return test.defect(do, pretend)
			}
			option := fx.Decorate(
				func(s module.RuleStore) module.RuleStore { return flawedRules{s, counted} },
				func(s module.PusherStore) module.PusherStore { return flawedPushers{s, counted} },
			)
			h := &ruleHistory{hosts: []*hosttest.Host{hosttest.StartHost(t, client, option), hosttest.StartHost(t, client, option)}, random: rand.New(rand.NewPCG(1, 0)), start: time.Now()}
			h.addUser(hosttest.Alice, test.of)
			ctx, stop := context.WithCancel(t.Context())
			go func() {
				defer stop()
				for changes.Load() < 100 { // whatever else keeps the machine busy
					time.Sleep(50 * time.Millisecond)
				}
			}()
			h.work(ctx)
			if err := h.lookAtAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if v := h.verdict(&strike{}, false); v.isBad() != test.bad {
				t.Errorf("got %+v", v)
			}
		})
	}
}

// One client puts a rule and another reads it while a master crashes, and once more afterwards.
func TestAfterACrashOnlyAcknowledgedChangesCount(t *testing.T) {
	t.Parallel()
	const struck, whole = 10, 100
	for name, test := range map[string]struct {
		put                string // the answer
		shown, kept        bool   // whether the two reads see the rule
		strictly, promised porcupine.CheckResult
	}{
		"acknowledged and kept":               {hosttest.Done, true, true, porcupine.Ok, porcupine.Ok},
		"acknowledged and lost":               {hosttest.Done, true, false, porcupine.Illegal, porcupine.Illegal},
		"acknowledged and hidden for a while": {hosttest.Done, false, true, porcupine.Illegal, porcupine.Ok},
		"not acknowledged, kept":              {unknown, true, true, porcupine.Ok, porcupine.Ok},
		"not acknowledged, lost":              {unknown, false, false, porcupine.Ok, porcupine.Ok},
		"not acknowledged, shown and lost":    {unknown, true, false, porcupine.Illegal, porcupine.Ok},
	} {
		t.Run(name, func(t *testing.T) {
			a := &randomClient{user: hosttest.Alice, random: rand.New(rand.NewPCG(0, 0))}
			put := a.putAt(pushrule.Room, "x", pushrule.Position{})
			var without userState
			look := map[bool]string{false: a.readAll().effect(&without)}
			with := without
			put.effect(&with)
			look[true] = a.readAll().effect(&with)
			history := withEnds([]porcupine.Operation{
				{ClientId: 0, Input: a.readAll(), Call: 1, Output: look[false], Return: 2},
				{ClientId: 1, Input: put, Call: struck + 1, Output: test.put, Return: struck + 2},
				{ClientId: 2, Input: a.readAll(), Call: struck + 3, Output: look[test.shown], Return: struck + 4},
				{ClientId: 3, Input: a.readAll(), Call: whole + 1, Output: look[test.kept], Return: whole + 2},
			}, 4, whole+3)
			if got := check(history); got != test.strictly {
				t.Errorf("strictly: got %s, want %s", got, test.strictly)
			}
			if got := check(acknowledged(history, struck, whole)); got != test.promised {
				t.Errorf("as promised: got %s, want %s", got, test.promised)
			}
		})
	}
}
