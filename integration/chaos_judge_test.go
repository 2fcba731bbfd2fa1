package integration

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

type judgement struct {
	operations, unknown int
	illegal             []porcupine.Operation // histories of users that are not linearizable
	undecided           []string              // users whose check takes too long
	outage              time.Duration         // longest time without a change for a user of the fault
}

func (v *judgement) add(other judgement) {
	v.operations += other.operations
	v.unknown += other.unknown
	v.illegal = append(v.illegal, other.illegal...)
	v.undecided = append(v.undecided, other.undecided...)
	v.outage = max(v.outage, other.outage)
}

// isBad reports whether a promise was broken. A busy machine may leave one history undecided.
func (v *judgement) isBad() bool { return len(v.illegal) > 0 || len(v.undecided) > 1 }

type judgementCounts struct {
	operations, unknown, illegal, undecided int
	outage                                  time.Duration
}

func (v *judgement) counts() judgementCounts {
	return judgementCounts{v.operations, v.unknown, len(partition(v.illegal)), len(v.undecided), v.outage}
}

// judge checks that every history is linearizable.
//
// After a crash of a master, Redis promises less, whatever the durability. A master shows a change before a
// replica has it, so a client can read a change that is never acknowledged and disappears in the takeover. A
// frozen master that was replaced answers with old values until it learns of the takeover. So for the users of a
// crashed master, reads and refusals between the crash and the end of its effects do not count. Acknowledged
// changes always count.
func (r *chaosRound) judge(crashed bool) (v judgement) {
	for _, u := range r.users {
		history := r.historyOf(u)
		isHit := slices.Contains(r.hit, u.name)
		v.operations += len(history)
		v.unknown += unanswered(history)
		if isHit {
			v.outage = max(v.outage, r.outage(history))
		}
		result := check(history)
		if result != porcupine.Ok && crashed && isHit {
			history, result = r.checkPromised(history)
		}
		switch result {
		case porcupine.Ok:
		case porcupine.Illegal:
			v.illegal = append(v.illegal, history...)
		default:
			v.undecided = append(v.undecided, u.name)
		}
	}
	return v
}

// checkPromised checks the promised part of the history of a user whose master crashed, and returns it. It
// first leaves out the reads until r.over and, if that check fails, the reads until r.whole. Success is always
// valid: a linearizable history stays linearizable without some of its reads.
func (r *chaosRound) checkPromised(all []porcupine.Operation) (rest []porcupine.Operation, result porcupine.CheckResult) {
	for _, end := range []int64{r.over, r.whole} {
		rest = acknowledged(all, r.struck, end)
		if result = check(rest); result == porcupine.Ok {
			break
		}
	}
	return rest, result
}

// acknowledged removes the reads and refusals between from and to.
func acknowledged(history []porcupine.Operation, from, to int64) []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool {
		return o.Return >= from && o.Call <= to && o.Output != done && o.Output != unknown
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

func (s flawedPushers) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	return s.defect(func() error { return s.PusherStore.UpdatePusher(ctx, user, key, edit) }, func() error { return nil })
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
			_, client := embedded(t)
			var changes atomic.Int64
			counted := func(do, pretend func() error) error {
				changes.Add(1)
				return test.defect(do, pretend)
			}
			option := fx.Decorate(
				func(s module.RuleStore) module.RuleStore { return flawedRules{s, counted} },
				func(s module.PusherStore) module.PusherStore { return flawedPushers{s, counted} },
			)
			r := newChaosRound(&hostPair{hosts: []*host{startHost(t, client, option), startHost(t, client, option)}}, rand.New(rand.NewPCG(1, 0)))
			r.addUser(alice, test.of, nil)
			none := func(context.Context, *faultRun) error { return nil }
			whole := func(ctx context.Context) error { // whatever else keeps the machine busy
				for changes.Load() < 100 {
					if err := sleep(ctx, aroundFault); err != nil {
						return err
					}
				}
				return nil
			}
			if err := r.play(t.Context(), chaosFault{faultRun: none}, whole); err != nil {
				t.Fatal(err)
			}
			if err := r.lookAtAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if v := r.judge(false); v.isBad() != test.bad {
				t.Errorf("got %+v", v.counts())
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
		"acknowledged and kept":               {done, true, true, porcupine.Ok, porcupine.Ok},
		"acknowledged and lost":               {done, true, false, porcupine.Illegal, porcupine.Illegal},
		"acknowledged and hidden for a while": {done, false, true, porcupine.Illegal, porcupine.Ok},
		"not acknowledged, kept":              {unknown, true, true, porcupine.Ok, porcupine.Ok},
		"not acknowledged, lost":              {unknown, false, false, porcupine.Ok, porcupine.Ok},
		"not acknowledged, shown and lost":    {unknown, true, false, porcupine.Illegal, porcupine.Ok},
	} {
		t.Run(name, func(t *testing.T) {
			a := &randomClient{user: alice, random: rand.New(rand.NewPCG(0, 0))}
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
