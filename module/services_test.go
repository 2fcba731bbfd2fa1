package module_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

const alice mxid.UserID = "@alice:example.org"

// ruleMemory is a rule store for one user. Before each commit of an update it
// runs meanwhile, once, as another host would.
type ruleMemory struct {
	rules     pushrule.Ruleset
	found     bool
	commits   int
	err       error // of every operation
	meanwhile func(*ruleMemory)
}

func (m *ruleMemory) Load(context.Context, mxid.UserID) (pushrule.Ruleset, bool, error) {
	return m.rules, m.found, m.err
}

func (m *ruleMemory) Update(_ context.Context, _ mxid.UserID, edit func(*pushrule.Ruleset, bool) error) error {
	if m.err != nil {
		return m.err
	}
	rules := m.rules
	if meanwhile := m.meanwhile; meanwhile != nil {
		_ = edit(&rules, m.found) // its commit loses the race
		m.meanwhile = nil
		meanwhile(m)
		rules = m.rules
	}
	if err := edit(&rules, m.found); err != nil {
		return err
	}
	m.rules, m.found = rules, true
	m.commits++
	return nil
}

// heard are the rules that a listener was told of.
type heard []string

func (h *heard) PushRulesChanged(ctx context.Context, _ mxid.UserID, rules pushrule.Ruleset) {
	if ctx.Done() != nil {
		*h = append(*h, "a context that can end")
	}
	*h = append(*h, text(rules))
}

func text(rules pushrule.Ruleset) string { return string(rules.AppendJSON(nil)) }

func mustRead(t *testing.T, text string) pushrule.Ruleset {
	t.Helper()
	rules, err := pushrule.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

const withLegacy = `{"override":[{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":[]}]}`

func TestTheWholeSetReadRepairsWhatItFinds(t *testing.T) {
	t.Parallel()
	defaults := pushrule.ServerDefault(alice)
	merged := mustRead(t, withLegacy)
	merged.MergeDefaults(alice)
	users := mustRead(t, `{"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[]}]}`)
	for name, test := range map[string]struct {
		store   ruleMemory
		want    pushrule.Ruleset
		commits int
	}{
		"nothing stored":      {ruleMemory{}, defaults, 1},
		"a legacy rule":       {ruleMemory{rules: mustRead(t, withLegacy), found: true}, merged, 1},
		"nothing to repair":   {ruleMemory{rules: users, found: true}, users, 0},
		"a set without rules": {ruleMemory{rules: mustRead(t, `{ }`), found: true}, mustRead(t, `{ }`), 0},
		"another host is first": {
			ruleMemory{meanwhile: func(m *ruleMemory) { m.rules, m.found = users, true }}, users, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told heard
			got, err := module.NewRuleService(&test.store, pushrule.DefaultLimits(), &told).Ruleset(t.Context(), alice)
			if err != nil || text(got) != text(test.want) {
				t.Errorf("got %s, %v\nwant %s", text(got), err, text(test.want))
			}
			if test.store.commits != test.commits || len(told) != test.commits {
				t.Errorf("got %d commits, told of %d, want %d", test.store.commits, len(told), test.commits)
			}
		})
	}
}

func TestListenersHearOfWhatWasStored(t *testing.T) {
	t.Parallel()
	store := &ruleMemory{rules: pushrule.ServerDefault(alice), found: true}
	var told heard
	service := module.NewRuleService(store, pushrule.DefaultLimits(), &told)
	put := func(id string) error {
		return service.Put(t.Context(), alice, pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
	}
	store.meanwhile = func(*ruleMemory) {
		if err := put("b"); err != nil {
			t.Error(err)
		}
	}
	if err := put("a"); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || told[1] != text(store.rules) || !strings.Contains(told[1], `"b"`) {
		t.Errorf("told of %q\nstored %s", told, text(store.rules))
	}
	if err := put("."); !errors.Is(err, pushrule.ErrReservedID) || len(told) != 2 {
		t.Errorf("got error %v, told of %d changes", err, len(told))
	}
}

func TestAUserWithoutRulesHasNoneToChange(t *testing.T) {
	t.Parallel()
	store := &ruleMemory{}
	service, ctx := module.NewRuleService(store, pushrule.DefaultLimits()), t.Context()
	_, ruleErr := service.Rule(ctx, alice, pushrule.Room, "a")
	_, enabledErr := service.Enabled(ctx, alice, pushrule.Room, "a")
	for name, err := range map[string]error{
		"Rule":       ruleErr,
		"Enabled":    enabledErr,
		"Put":        service.Put(ctx, alice, pushrule.Room, ".", pushrule.Draft{}, pushrule.Position{}),
		"SetEnabled": service.SetEnabled(ctx, alice, pushrule.Room, "a", true),
		"SetActions": service.SetActions(ctx, alice, pushrule.Room, "a", nil),
		"Delete":     service.Delete(ctx, alice, pushrule.Room, "a"),
	} {
		if !errors.Is(err, pushrule.ErrEventNotFound) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if store.commits != 0 {
		t.Error("something was stored")
	}
}

func TestALegacyIDDecidesAlone(t *testing.T) {
	t.Parallel()
	service := module.NewRuleService(&ruleMemory{err: errors.New("not to be asked")}, pushrule.DefaultLimits())
	for _, id := range []string{".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"} {
		known := pushrule.Kinds()
		for _, kind := range append(known[:], "unknown") {
			if _, err := service.Rule(t.Context(), alice, kind, id); !errors.Is(err, pushrule.ErrRuleNotFound) {
				t.Errorf("Rule of %s %s: got error %v", kind, id, err)
			}
			if enabled, err := service.Enabled(t.Context(), alice, kind, id); enabled || err != nil {
				t.Errorf("Enabled of %s %s: got %t, %v", kind, id, enabled, err)
			}
		}
	}
}

func TestLimitsHoldForWhatIsReplacedNotForWhatWasRead(t *testing.T) {
	t.Parallel()
	limits := pushrule.DefaultLimits()
	limits.MaxRules, limits.MaxActions = 1, 1
	store := &ruleMemory{found: true}
	service, ctx := module.NewRuleService(store, limits), t.Context()
	put := func(id string) error {
		return service.Put(ctx, alice, pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
	}
	store.meanwhile = func(*ruleMemory) {
		if err := put("b"); err != nil {
			t.Error(err)
		}
	}
	if err := put("a"); fault.KindOf(err) != fault.InvalidParam || !strings.Contains(err.Error(), "at most 1 push rules") {
		t.Errorf("the second of two racing writers at the limit: got error %v", err)
	}
	if err := put("b"); err != nil {
		t.Errorf("replacing a rule at the limit: %v", err)
	}
	two := []pushrule.Action{`"notify"`, `"x"`}
	if err := service.SetActions(ctx, alice, pushrule.Room, "b", two); fault.KindOf(err) != fault.InvalidParam {
		t.Errorf("too many actions: got error %v", err)
	}
	if rule, err := service.Rule(ctx, alice, pushrule.Room, "b"); err != nil || len(rule.Actions) != 0 {
		t.Errorf("got %+v, %v", rule, err)
	}
}

// pusherMemory is a pusher store for one user.
type pusherMemory struct{ list pusher.List }

func (m *pusherMemory) Load(context.Context, mxid.UserID) (pusher.List, error) { return m.list, nil }

func (m *pusherMemory) Update(_ context.Context, _ mxid.UserID, edit func(*pusher.List) error) error {
	list := m.list
	err := edit(&list)
	if err == nil {
		m.list = list
	}
	return err
}

func TestThePusherServiceHoldsThePolicy(t *testing.T) {
	t.Parallel()
	policy := pusher.DefaultPolicy()
	policy.MaxPushers = 1
	store := &pusherMemory{}
	service, ctx := module.NewPusherService(store, policy), t.Context()
	email := func(pushkey string) pusher.Pusher {
		return pusher.Pusher{Key: pusher.Key{AppID: "m.email", Pushkey: pushkey}, Kind: pusher.Email, Data: "{}"}
	}
	for _, step := range []struct {
		name string
		do   func() error
		want fault.Kind
	}{
		{"a first", func() error { return service.Set(ctx, alice, email("a")) }, ""},
		{"a second, over the limit", func() error { return service.Set(ctx, alice, email("b")) }, fault.InvalidParam},
		{"the first again", func() error { return service.Set(ctx, alice, email("a")) }, ""},
		{"what is not allowed", func() error { return service.Set(ctx, alice, email("")) }, fault.InvalidParam},
		{"deleting what is not there", func() error { return service.Delete(ctx, alice, email("b").Key) }, ""},
		{"deleting", func() error { return service.Delete(ctx, alice, email("a").Key) }, ""},
		{"another in its place", func() error { return service.Set(ctx, alice, email("b")) }, ""},
	} {
		if err := step.do(); (err != nil || step.want != "") && fault.KindOf(err) != step.want {
			t.Errorf("%s: got error %v", step.name, err)
		}
	}
	list, err := service.List(ctx, alice)
	if err != nil || list.Len() != 1 || list.All()[0].Pushkey != "b" {
		t.Errorf("got %+v, %v", list, err)
	}
}
