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

func found(rules pushrule.Ruleset) module.Content {
	return module.Content{Rules: rules, Version: 1}
}

type received chan int64

func (h received) PushRulesChanged(_ context.Context, _ mxid.UserID, version int64) { h <- version }

func hostOn(stores module.Stores, feed *module.Feed, o module.Options) module.HostService {
	service := module.NewService(stores, feed, o)
	return service.Host(service.Rules())
}

func newRules(t *testing.T, store module.RuleStore, limits pushrule.Limits, listeners ...module.ChangeListener) module.RuleService {
	t.Helper()
	return module.NewService(module.Stores{Rules: store}, newFeed(t, store, listeners...), module.Options{Limits: limits}).Rules()
}

func newFeed(t *testing.T, store module.RuleStore, listeners ...module.ChangeListener) *module.Feed {
	t.Helper()
	feed, err := module.NewFeed(module.Stores{Rules: store}, module.DefaultFeedConfig(), nil, module.Listeners{Rules: listeners})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		feed.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return feed
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

func TestTheWholeSetReadRepairsRules(t *testing.T) {
	t.Parallel()
	defaults := pushrule.ServerDefault(alice)
	merged := mustRead(t, withLegacy)
	merged.MergeDefaults(defaults)
	users := mustRead(t, `{"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[]}]}`)
	for name, test := range map[string]struct {
		store   *ruleMemory
		want    pushrule.Ruleset
		commits int
	}{
		"nothing stored":      {rulesOf(module.Content{}), defaults, 1},
		"a legacy rule":       {rulesOf(found(mustRead(t, withLegacy))), merged, 1},
		"nothing to repair":   {rulesOf(found(users)), users, 0},
		"a set without rules": {rulesOf(found(mustRead(t, `{ }`))), mustRead(t, `{ }`), 0},
		"another host is first": {
			racing(found(users)), users, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := newRules(t, test.store, pushrule.DefaultLimits()).Content(t.Context(), alice)
			if err != nil || text(got.Rules) != text(test.want) || !got.Found() {
				t.Errorf("got %s, %v\nwant %s", text(got.Rules), err, text(test.want))
			}
			if test.store.commits() != test.commits {
				t.Errorf("got %d commits, want %d", test.store.commits(), test.commits)
			}
		})
	}
}

func TestListenersAreNotifiedOfEachKindOfChange(t *testing.T) {
	t.Parallel()
	store := rulesOf(found(pushrule.ServerDefault(alice)))
	notified := make(received, 10)
	service := newRules(t, store, pushrule.DefaultLimits(), notified)
	put := func(id string) error {
		return service.Put(t.Context(), alice, pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
	}
	for n, step := range []struct {
		id      string
		want    error
		version int64 // 0 for no notification
	}{
		{"a", nil, 2}, {".", pushrule.ErrReservedID, 0}, {"a", nil, 0}, {"b", nil, 3},
	} {
		if err := put(step.id); !errors.Is(err, step.want) {
			t.Errorf("step %d: got error %v, want %v", n, err, step.want)
		}
		if step.version == 0 {
			continue // the next one shows that there was none
		}
		if got := <-notified; got != step.version {
			t.Errorf("step %d: notified of version %d, want %d", n, got, step.version)
		}
	}
}

// This host has had no request for the user before.
func TestAPutWithoutEffectIsNoChange(t *testing.T) {
	t.Parallel()
	store := rulesOf(found(pushrule.ServerDefault(alice)))
	put := func(listeners ...module.ChangeListener) {
		t.Helper()
		service := newRules(t, store, pushrule.DefaultLimits(), listeners...)
		if err := service.Put(t.Context(), alice, pushrule.Room, "a", pushrule.Draft{}, pushrule.Position{}); err != nil {
			t.Fatal(err)
		}
	}
	put()
	notified := make(received, 10)
	put(notified)
	service := newRules(t, store, pushrule.DefaultLimits(), notified)
	if err := service.SetEnabled(t.Context(), alice, pushrule.Room, "a", false); err != nil {
		t.Fatal(err)
	}
	if got, want := <-notified, store.content().Version; got != want {
		t.Errorf("notified of version %d, want only of %d", got, want)
	}
}

func TestRulesOfAUserWithoutRulesCannotChange(t *testing.T) {
	t.Parallel()
	store := rulesOf(module.Content{})
	service, ctx := newRules(t, store, pushrule.DefaultLimits()), t.Context()
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
	if store.commits() != 0 {
		t.Error("something was stored")
	}
}

func TestALegacyIDIsNotFoundForEveryKind(t *testing.T) {
	t.Parallel()
	store := rulesOf(module.Content{})
	store.Before = func(string) error { return errors.New("not to be asked") }
	service := newRules(t, store, pushrule.DefaultLimits())
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

func TestLimitsApplyToTheReplacedSet(t *testing.T) {
	t.Parallel()
	limits := pushrule.DefaultLimits()
	limits.MaxRules, limits.MaxActions = 1, 1
	store := rulesOf(found(pushrule.Ruleset{}))
	service, ctx := newRules(t, store, limits), t.Context()
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

// The store has no limit.
func TestASetMayNotGrowPastItsByteLimit(t *testing.T) {
	t.Parallel()
	limits := pushrule.DefaultLimits()
	limits.MaxSetBytes = 300
	store := rulesOf(found(pushrule.Ruleset{}))
	service, ctx := newRules(t, store, limits), t.Context()
	put := func(id string) error {
		return service.Put(ctx, alice, pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
	}
	wide := []pushrule.Action{pushrule.Action(`"` + strings.Repeat("x", 300) + `"`)}
	for _, step := range []struct {
		name string
		do   func() error
		want fault.Kind
	}{
		{"a small rule", func() error { return put("a") }, ""},
		{"a large rule", func() error { return put(strings.Repeat("b", 300)) }, fault.TooLarge},
		{"large actions", func() error { return service.SetActions(ctx, alice, pushrule.Room, "a", wide) }, fault.TooLarge},
		{"no growth", func() error { return put("a") }, ""},
	} {
		if err := step.do(); (err != nil || step.want != "") && fault.KindOf(err) != step.want {
			t.Errorf("%s: got error %v", step.name, err)
		}
	}
	if store.commits() != 1 {
		t.Errorf("%d changes were stored, want 1", store.commits())
	}
}

func TestThePusherServiceAppliesThePolicy(t *testing.T) {
	t.Parallel()
	policy := policyWithMail()
	policy.MaxPushers = 1
	store := newMemory()
	service, ctx := module.NewService(module.Stores{Pushers: store, Pushkeys: store.index()}, nil, module.Options{Policy: policy}).Pushers(), t.Context()
	email := func(pushkey string) pusher.Pusher {
		return pusher.Pusher{Key: pusher.Key{AppID: "m.email", Pushkey: pushkey}, Kind: pusher.Email, Data: "{}"}
	}
	set := func(pushkey string) error { return service.Set(ctx, alice, email(pushkey), pusher.RemoveOthers) }
	for _, step := range []struct {
		name string
		do   func() error
		want fault.Kind
	}{
		{"a first", func() error { return set("a") }, ""},
		{"a second, over the limit", func() error { return set("b") }, fault.InvalidParam},
		{"the first again", func() error { return set("a") }, ""},
		{"what is not allowed", func() error { return set("") }, fault.InvalidParam},
		{"deleting what is not there", func() error { return service.Delete(ctx, alice, email("b").Key) }, ""},
		{"deleting", func() error { return service.Delete(ctx, alice, email("a").Key) }, ""},
		{"another in its place", func() error { return set("b") }, ""},
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
