package service_test

import (
	"context"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/service"
)

const alice mxid.UserID = "@alice:example.org"

func found(rules pushrule.Ruleset) module.Content {
	return module.Content{Rules: rules, Version: 1}
}

// reported are the versions of a user's rules that the service reports.
type reported struct{ versions []int64 }

func (r *reported) RulesChanged(_ mxid.UserID, version int64) {
	r.versions = append(r.versions, version)
}
func (*reported) RulesForgotten(mxid.UserID) {}
func (*reported) PushersChanged(mxid.UserID) {}

func hostOn(stores module.Stores, changes service.Changes, o service.Options) module.HostService {
	services := service.New(stores, changes, o)
	return services.Host(services.Rules())
}

func newRules(t *testing.T, store module.RuleStore, limits pushrule.Limits, listeners ...module.ChangeListener) module.RuleService {
	t.Helper()
	return service.New(module.Stores{Rules: store}, newFeed(t, store, listeners...), service.Options{Limits: limits}).Rules()
}

func newFeed(t *testing.T, store module.RuleStore, listeners ...module.ChangeListener) *feed.Feed {
	t.Helper()
	feed, err := feed.New(module.Stores{Rules: store}, feed.DefaultConfig(), nil, feed.Listeners{Rules: listeners})
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

func TestAPutWithoutEffectIsNoChange(t *testing.T) {
	t.Parallel()
	changes := &reported{}
	rules := service.New(module.Stores{Rules: rulesOf(found(pushrule.ServerDefault(alice)))}, changes, service.Options{Limits: pushrule.DefaultLimits()}).Rules()
	for i, id := range []string{"a", "a", "b", "b"} {
		if err := rules.Put(t.Context(), alice, pushrule.Room, id, pushrule.Draft{}, pushrule.Position{}); err != nil {
			t.Fatal(err)
		}
		if want := 1 + i/2; len(changes.versions) != want {
			t.Errorf("put %d: %d changes are reported, want %d", i, len(changes.versions), want)
		}
	}
}
