package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Rules tests the contract of [module.RuleStore]. Plant may be nil if a test cannot
// write to the data without the store.
func Rules(t *testing.T, newStore func(*testing.T) module.RuleStore, plant Plant) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(*testing.T) module.RuleStore)
	}{
		{"a new user has no rules", noRules},
		{"every host loads stored rules", rulesRoundTrip},
		{"a refused edit changes nothing", refusedRuleEdit},
		{"users are separate", ruleUsersApart},
		{"invalid user ids are refused, and an ended context changes nothing", refusedRuleCalls},
		{"each of many writers gets its own result, and no change is lost", ruleWriters},
		{"versions grow with changes only", ruleVersions},
		{"many users are loaded at once", loadManyRules},
		{"deleted rules are gone", deletedRules},
		{"every watching host is notified of changes", watchedRules},
		{"the versions of many users are loaded at once", manyVersions},
		{"one of many first writers wins", ruleFirstWriters},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newStore) })
	}
	if plant == nil {
		return
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(*testing.T) module.RuleStore, Plant)
	}{
		{"unreadable rules are never overwritten", unreadableRules},
		{"unknown members are kept", foreignMembers},
		{"rules of another writer have a new version", foreignVersions},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newStore, plant) })
	}
}

func ruleset(t *testing.T, text string) pushrule.Ruleset {
	t.Helper()
	rules, err := pushrule.Read(text)
	wantNoError(t, err)
	return rules
}

func updateRules(ctx context.Context, store module.RuleStore, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) error {
	_, err := store.Update(ctx, user, edit)
	return err
}

func storeRules(t *testing.T, store module.RuleStore, user mxid.UserID, rules pushrule.Ruleset) {
	t.Helper()
	wantNoError(t, updateRules(t.Context(), store, user, func(stored *pushrule.Ruleset, _ bool) error {
		*stored = rules
		return nil
	}))
}

func wantRules(t *testing.T, store module.RuleStore, user mxid.UserID, want pushrule.Ruleset) {
	t.Helper()
	got, err := store.Load(t.Context(), user)
	wantNoError(t, err)
	wantContent(t, got, want)
}

func wantNoRules(t *testing.T, store module.RuleStore, user mxid.UserID) {
	t.Helper()
	if content, err := store.Load(t.Context(), user); err != nil || content.Found() {
		t.Errorf("got found %t, error %v, want no rules", content.Found(), err)
	}
}

func wantContent(t *testing.T, got module.Content, want pushrule.Ruleset) {
	t.Helper()
	if !got.Found() {
		t.Fatal("no rules found")
	}
	wantEqual(t, string(got.Rules.AppendJSON(nil)), string(want.AppendJSON(nil)))
}

func noRules(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	store, user := newStore(t), newUser()
	wantNoRules(t, store, user)
	wantNoError(t, updateRules(t.Context(), store, user, func(rules *pushrule.Ruleset, found bool) error {
		if found || rules.Len() != 0 {
			t.Errorf("edit got found %t and %d rules, want none", found, rules.Len())
		}
		*rules = pushrule.ServerDefault(user)
		return nil
	}))
	wantRules(t, store, user, pushrule.ServerDefault(user))
}

func rulesRoundTrip(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	user := newUser()
	rules := ruleset(t, `{ "override":[{"rule_id":"ü<&>","default":false,"enabled":true,
		"actions":["notify",{"set_tweak":"x","value":12345678901234567890.10}],"conditions":[{"kind":"org.example.x","n":1e400}],
		"org.example.extra":{"a":[]}}],"content":[],"room":[],"sender":[],"underride":[],"org.example.kind":[null]}`)
	storeRules(t, newStore(t), user, rules)
	wantRules(t, newStore(t), user, rules)

	wantNoError(t, rules.SetEnabled(pushrule.Override, "ü<&>", false))
	wantNoError(t, updateRules(t.Context(), newStore(t), user, func(stored *pushrule.Ruleset, found bool) error {
		if !found {
			t.Error("edit got found false for stored rules")
		}
		return stored.SetEnabled(pushrule.Override, "ü<&>", false)
	}))
	wantRules(t, newStore(t), user, rules)
}

func refusedRuleEdit(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	store, user := newStore(t), newUser()
	refuse := func(rules *pushrule.Ruleset, _ bool) error {
		*rules = ruleset(t, `{}`)
		return errRefused
	}
	if err := updateRules(t.Context(), store, user, refuse); !errors.Is(err, errRefused) {
		t.Errorf("got error %v, want the edit's", err)
	}
	wantNoRules(t, store, user)

	storeRules(t, store, user, pushrule.ServerDefault(user))
	if err := updateRules(t.Context(), store, user, refuse); !errors.Is(err, errRefused) {
		t.Errorf("got error %v, want the edit's", err)
	}
	wantRules(t, store, user, pushrule.ServerDefault(user))
}

func ruleUsersApart(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	store, users := newStore(t), oddUsers()
	for _, user := range users {
		wantNoRules(t, store, user)
		storeRules(t, store, user, pushrule.ServerDefault(user))
	}
	for _, user := range users {
		wantRules(t, store, user, pushrule.ServerDefault(user))
	}
}

func refusedRuleCalls(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	store, user := newStore(t), newUser()
	wantRefused(t, user, func(ctx context.Context, user mxid.UserID) map[string]error {
		_, load := store.Load(ctx, user)
		return map[string]error{
			"Load":     load,
			"LoadMany": store.LoadMany(ctx, []mxid.UserID{user})[user].Err,
			"Versions": store.Versions(ctx, []mxid.UserID{user})[user].Err,
			"Update":   updateRules(ctx, store, user, putRoom("a")),
			"Delete":   store.Delete(ctx, user),
		}
	})
	wantNoRules(t, store, user)
}

// ruleWriters runs concurrent updates. Some writers refuse or cancel their update. The
// other writers must find their change in the result of their update. Results with
// equal versions must be equal.
func ruleWriters(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	hosts, user := [2]module.RuleStore{newStore(t), newStore(t)}, newUser()
	storeRules(t, hosts[0], user, pushrule.ServerDefault(user))
	refuses := func(writer int) bool { return writer%4 == 1 }
	goesAway := func(writer int) bool { return writer%4 == 3 }
	var mu sync.Mutex
	texts := map[int64]string{}
	write := func(ctx context.Context, writer int) error {
		var made pushrule.Ruleset
		content, err := hosts[writer/4%2].Update(ctx, user, func(rules *pushrule.Ruleset, _ bool) error {
			err := rules.Put(pushrule.Room, name(writer), pushrule.Draft{}, pushrule.Position{})
			if refuses(writer) {
				err = errRefused
			}
			made = *rules
			return err
		})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		text := string(content.AppendJSON(nil))
		_, isMade := made.Rule(pushrule.Room, name(writer))
		_, isStored := content.Rules.Rule(pushrule.Room, name(writer))
		if other, known := texts[content.Version]; refuses(writer) || !isMade || !isStored || known && other != text {
			return fmt.Errorf("the update returned version %d of %s", content.Version, text)
		}
		texts[content.Version] = text
		return nil
	}
	together(t, func(ctx context.Context, writer int) error {
		if goesAway(writer) {
			away, cancel := context.WithCancel(ctx)
			go cancel()
			_ = write(away, writer)
			return nil
		}
		err := persist(ctx, func() error { return write(ctx, writer) })
		if refuses(writer) && errors.Is(err, errRefused) {
			return nil
		}
		return err
	})
	content, err := hosts[0].Load(t.Context(), user)
	wantNoError(t, err)
	for writer := range writers {
		if _, found := content.Rules.Rule(pushrule.Room, name(writer)); found == refuses(writer) && !goesAway(writer) {
			t.Errorf("writer %d: found the rule: %t", writer, found)
		}
	}
}

func ruleFirstWriters(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	hosts, user := [2]module.RuleStore{newStore(t), newStore(t)}, newUser()
	errExists := errors.New("there are rules already")
	winners := make(chan int, writers)
	together(t, func(ctx context.Context, writer int) error {
		err := updateRules(ctx, hosts[writer%2], user, func(rules *pushrule.Ruleset, found bool) error {
			if found {
				return errExists
			}
			return rules.Put(pushrule.Room, name(writer), pushrule.Draft{}, pushrule.Position{})
		})
		switch {
		case err == nil:
			winners <- writer
		case !errors.Is(err, errExists):
			return err
		}
		return nil
	})
	if len(winners) != 1 {
		t.Fatalf("got %d first writers, want one", len(winners))
	}
	content, err := hosts[1].Load(t.Context(), user)
	wantNoError(t, err)
	rules := content.Rules
	if _, found := rules.Rule(pushrule.Room, name(<-winners)); !found || rules.Len() != 1 {
		t.Errorf("got %d rules, found the winner's: %t", rules.Len(), found)
	}
}
