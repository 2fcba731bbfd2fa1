package integration

import (
	"context"
	"math/rand/v2"
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

// flaw is what is wrong with a store. It gets every change as one that is made
// and one that only gives the answer.
type flaw func(do, pretend func() error) error

// forgets makes only some changes, and acknowledges all.
func forgets(do, pretend func() error) error {
	if rand.IntN(3) == 0 {
		return pretend()
	}
	return do()
}

// stutters makes every change twice and gives the second answer.
func stutters(do, _ func() error) error {
	if err := do(); err != nil {
		return err
	}
	return do()
}

func sound(do, _ func() error) error { return do() }

// counted is a flaw that counts the changes.
func counted(f flaw, changes *atomic.Int64) flaw {
	return func(do, pretend func() error) error {
		changes.Add(1)
		return f(do, pretend)
	}
}

type flawedRules struct {
	module.RuleStore
	flaw flaw
}

func (s flawedRules) Update(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (content module.Content, err error) {
	ctx = context.WithoutCancel(ctx)
	err = s.flaw(
		func() (err error) {
			content, err = s.RuleStore.Update(ctx, user, edit)
			return err
		},
		func() (err error) {
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

func (s flawedPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	ctx = context.WithoutCancel(ctx)
	return s.flaw(
		func() error { return s.PusherStore.Update(ctx, user, edit) },
		func() error { return nil },
	)
}

func (s flawedPushers) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	ctx = context.WithoutCancel(ctx)
	return s.flaw(
		func() error { return s.PusherStore.UpdatePusher(ctx, user, key, edit) },
		func() error { return nil },
	)
}

func flawed(f flaw) fx.Option {
	return fx.Decorate(
		func(s module.RuleStore) module.RuleStore { return flawedRules{s, f} },
		func(s module.PusherStore) module.PusherStore { return flawedPushers{s, f} },
	)
}

func TestTheJudgementOfChaosFindsChangesThatAreLostOrMadeTwice(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		flaw          flaw
		of            estate
		lost, doubled bool
	}{
		{"rules of a sound store", sound, ruleEstate{}, false, false},
		{"pushers of a sound store", sound, pusherEstate{}, false, false},
		{"rules that are forgotten", forgets, ruleEstate{}, true, false},
		{"pushers that are forgotten", forgets, pusherEstate{}, true, false},
		{"rules that are deleted twice", stutters, ruleEstate{}, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := judgeFlawed(t, test.flaw, test.of)
			isSound := !test.lost && !test.doubled
			if test.lost && len(v.lost) == 0 || test.doubled && len(v.doubled) == 0 ||
				isSound == v.isBad() || isSound != (len(v.illegal) == 0) {
				t.Errorf("%s\n%s", v.summary(), v.details())
			}
		})
	}
}

// judgeFlawed judges a round on stores with a flaw, without a fault of Redis.
func judgeFlawed(t *testing.T, f flaw, of estate) verdict {
	t.Helper()
	_, client := embedded(t)
	hosts, changes := &team{}, atomic.Int64{}
	for range 2 {
		hosts.hosts = append(hosts.hosts, startHost(t, client, flawed(counted(f, &changes))))
	}
	r := newChaosRound(hosts, rand.New(rand.NewPCG(seedOf(t.Name()), 0)))
	r.addUser(alice, of, nil)
	manyChanges := chaosFault{strike: func(ctx context.Context, _ *strike) (err error) {
		for err == nil && changes.Load() < 100 {
			err = sleep(ctx, 10*time.Millisecond)
		}
		return err
	}}
	if err := r.play(t.Context(), manyChanges, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := r.lookAtAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.judge(false)
}

// TestAfterACrashInChaosOnlyWhatWasAcknowledgedCounts has a client put a rule and
// another read it while a master crashes, and then once more.
func TestAfterACrashInChaosOnlyWhatWasAcknowledgedCounts(t *testing.T) {
	t.Parallel()
	const struck, whole = 10, 100
	for _, test := range []struct {
		name               string
		put                string // the answer
		shown, kept        bool   // whether the read sees the rule, and the later one
		strictly, promised porcupine.CheckResult
	}{
		{"acknowledged and kept", done, true, true, porcupine.Ok, porcupine.Ok},
		{"acknowledged and lost", done, true, false, porcupine.Illegal, porcupine.Illegal},
		{"acknowledged and hidden for a while", done, false, true, porcupine.Illegal, porcupine.Ok},
		{"not acknowledged, kept", unknown, true, true, porcupine.Ok, porcupine.Ok},
		{"not acknowledged, lost", unknown, false, false, porcupine.Ok, porcupine.Ok},
		{"not acknowledged, shown and lost", unknown, true, false, porcupine.Illegal, porcupine.Ok},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &actor{user: alice, random: rand.New(rand.NewPCG(0, 0))}
			put := a.putAt(pushrule.Room, "x", pushrule.Position{})
			var without userState
			first := a.readAll().effect(&without)
			with := without
			put.effect(&with)
			look := func(found bool) string {
				if found {
					return a.readAll().effect(&with)
				}
				return first
			}
			history := withEnds([]porcupine.Operation{
				{ClientId: 0, Input: a.readAll(), Call: 1, Output: first, Return: 2},
				{ClientId: 1, Input: put, Call: struck + 1, Output: test.put, Return: struck + 2},
				{ClientId: 2, Input: a.readAll(), Call: struck + 3, Output: look(test.shown), Return: struck + 4},
				{ClientId: 3, Input: a.readAll(), Call: whole + 1, Output: look(test.kept), Return: whole + 2},
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

// ownChange is a change of a client's own rule.
type ownChange struct {
	id string
	request
}

func TestAnAccountOfChaosTellsWhatIsLostAndWhatIsMadeAgain(t *testing.T) {
	t.Parallel()
	a := &actor{user: alice, random: rand.New(rand.NewPCG(0, 0))}
	put := func(id string, at pushrule.Position) ownChange {
		a.sent++
		return ownChange{id, a.putAt(pushrule.Room, id, at)}
	}
	act := func(id string) ownChange {
		a.sent++
		return ownChange{id, a.setActionsAt(pushrule.Room, id)}
	}
	x, y, z := put("x", pushrule.Position{}), put("y", pushrule.Position{}), put("z", pushrule.Position{})
	x2, z2 := act("x"), act("z")
	yBelowX, xBelowY := put("y", pushrule.Position{After: "x"}), put("x", pushrule.Position{After: "y"})
	noZ := ownChange{"z", a.removeAt(pushrule.Room, "z")}
	for _, test := range []struct {
		name          string
		acknowledged  []ownChange
		unanswered    []ownChange
		refused       []ownChange
		made          []ownChange
		lost, doubled int
	}{
		{"all, once", []ownChange{x, y, x2}, nil, nil, []ownChange{x, y, x2}, 0, 0},
		{"a put is missing", []ownChange{x, y}, nil, nil, []ownChange{x}, 1, 0},
		{"a put and what followed are missing", []ownChange{x, y, x2}, nil, nil, []ownChange{y}, 1, 0},
		{"a change is missing", []ownChange{x, y, x2}, nil, nil, []ownChange{x, y}, 1, 0},
		{"a delete is missing", []ownChange{z, noZ}, nil, nil, []ownChange{z}, 1, 0},
		{"a put came again after a delete", []ownChange{z, z2, noZ}, nil, nil, []ownChange{z, z2, noZ, z}, 0, 1},
		{"a move came again", []ownChange{x, y, yBelowX, xBelowY}, nil, nil, []ownChange{x, y, yBelowX, xBelowY, yBelowX}, 0, 1},
		{"a delete came again", []ownChange{z}, nil, []ownChange{noZ}, []ownChange{z, noZ}, 0, 1},
		{"a delete was refused", []ownChange{z}, nil, []ownChange{noZ}, []ownChange{z}, 0, 0},
		{"a change without an answer was made", []ownChange{x, y}, []ownChange{x2}, nil, []ownChange{x, y, x2}, 0, 0},
		{"a change without an answer was not made", []ownChange{x, y}, []ownChange{x2}, nil, []ownChange{x, y}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			account, final := newAccount(), userState{found: true}
			for _, c := range test.acknowledged {
				account.enter(ruleEstate{}, c.id, c.request, done)
			}
			for _, c := range test.unanswered {
				account.enter(ruleEstate{}, c.id, c.request, unknown)
			}
			for _, c := range test.refused {
				account.enter(ruleEstate{}, c.id, c.request, ruleMissing)
			}
			for _, c := range test.made {
				c.effect(&final)
			}
			if lost, doubled := account.close(ruleEstate{}, final); len(lost) != test.lost || len(doubled) != test.doubled {
				t.Errorf("got %d lost and %d doubled, want %d and %d: %q %q", len(lost), len(doubled), test.lost, test.doubled, lost, doubled)
			}
		})
	}
}
