package integration

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// verdict is what rounds come to.
type verdict struct {
	operations, unknown int
	illegal             []porcupine.Operation // histories of users that are not linearizable
	undecided           []string              // users for whom it takes too long to tell
	outage              time.Duration         // longest time without a change for a user whom the fault hit
}

// add adds the verdict of another round.
func (v *verdict) add(other verdict) {
	v.operations += other.operations
	v.unknown += other.unknown
	v.illegal = append(v.illegal, other.illegal...)
	v.undecided = append(v.undecided, other.undecided...)
	v.outage = max(v.outage, other.outage)
}

// isBad reports whether something went wrong. One history for which it takes too
// long to tell is no sign of that, on a machine that does other things.
func (v *verdict) isBad() bool { return len(v.illegal) > 0 || len(v.undecided) > 1 }

// verdictCounts is a verdict in numbers.
type verdictCounts struct {
	operations, unknown, illegal, undecided int
	outage                                  time.Duration
}

func (v *verdict) counts() verdictCounts {
	return verdictCounts{v.operations, v.unknown, len(partition(v.illegal)), len(v.undecided), v.outage}
}

// judge wants every history to be linearizable.
//
// For users who were on a master that crashed, that is more than Redis can
// promise, whatever the durability. A master shows a change before a replica has
// it: a read can show what is never acknowledged and gone after the takeover.
// And a master that was frozen does not know that it has been replaced: until it
// hears of that, it answers with what it had. Between the crash and the time when
// nothing is left of it, what these users were told does not count, therefore,
// be it an answer to a read or a refusal; that a change was made does. All the
// rest must be linearizable nevertheless: acknowledged changes, in the order of
// time, with everything before the crash and after it.
func (r *chaosRound) judge(crashed bool) (v verdict) {
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

// checkPromised checks what remains of the history of a user whose master has
// crashed, and returns that, too. The less is left out, the sooner a check ends;
// what is linearizable then is so with more left out.
func (r *chaosRound) checkPromised(all []porcupine.Operation) (rest []porcupine.Operation, result porcupine.CheckResult) {
	for _, end := range []int64{r.over, r.whole} {
		rest = acknowledged(all, r.struck, end)
		if result = check(rest); result == porcupine.Ok {
			break
		}
	}
	return rest, result
}

// acknowledged leaves out of a history what clients were told in the time
// between, but for changes that were made.
func acknowledged(history []porcupine.Operation, from, to int64) []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool {
		return o.Return >= from && o.Call <= to && o.Output != done && o.Output != unknown
	})
}

// flaw is what is wrong with a store. It gets every change as one that is made
// and one that only gives the answer.
type flaw func(do, pretend func() error) error

type flawedRules struct {
	module.RuleStore
	flaw flaw
}

func (s flawedRules) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (content module.Content, err error) {
	err = s.flaw(
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
	flaw flaw
}

func (s flawedPushers) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	return s.flaw(func() error { return s.PusherStore.UpdatePusher(ctx, user, key, edit) }, func() error { return nil })
}

// TestTheJudgeFindsChangesThatAreLostOrMadeTwice judges rounds on flawed stores,
// without a fault of Redis.
func TestTheJudgeFindsChangesThatAreLostOrMadeTwice(t *testing.T) {
	t.Parallel()
	sound := func(do, _ func() error) error { return do() }
	forgets := func(do, pretend func() error) error {
		return one(&actor{random: rand.New(rand.NewPCG(rand.Uint64(), 0))}, do, do, pretend)()
	}
	stutters := func(do, _ func() error) error {
		if err := do(); err != nil {
			return err
		}
		return do()
	}
	for name, test := range map[string]struct {
		flaw flaw
		of   *estate
		bad  bool
	}{
		"rules of a sound store":       {sound, &ruleEstate, false},
		"pushers of a sound store":     {sound, &pusherEstate, false},
		"rules that are forgotten":     {forgets, &ruleEstate, true},
		"pushers that are forgotten":   {forgets, &pusherEstate, true},
		"rules that are changed twice": {stutters, &ruleEstate, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := embedded(t)
			option := fx.Decorate(
				func(s module.RuleStore) module.RuleStore { return flawedRules{s, test.flaw} },
				func(s module.PusherStore) module.PusherStore { return flawedPushers{s, test.flaw} },
			)
			r := newChaosRound(&team{hosts: []*host{startHost(t, client, option), startHost(t, client, option)}}, rand.New(rand.NewPCG(1, 0)))
			r.addUser(alice, test.of, nil)
			none := func(context.Context, *strike) error { return nil }
			whole := func(ctx context.Context) error { return sleep(ctx, 2*aroundFault) }
			if err := r.play(t.Context(), chaosFault{strike: none}, whole); err != nil {
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

// TestAfterACrashOnlyWhatWasAcknowledgedCounts has a client put a rule and
// another read it while a master crashes, and then once more.
func TestAfterACrashOnlyWhatWasAcknowledgedCounts(t *testing.T) {
	t.Parallel()
	const struck, whole = 10, 100
	for name, test := range map[string]struct {
		put                string // the answer
		shown, kept        bool   // whether the read sees the rule, and the later one
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
			a := &actor{user: alice, random: rand.New(rand.NewPCG(0, 0))}
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
