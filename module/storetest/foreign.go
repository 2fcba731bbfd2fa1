package storetest

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Plant replaces the stored content of a user's m.push_rules event by writing to the
// database without the store. The content may be invalid JSON.
type Plant func(t *testing.T, user mxid.UserID, content string)

func unreadableRules(t *testing.T, newStore func(*testing.T) module.RuleStore, plant Plant) {
	hosts := [2]module.RuleStore{newStore(t), newStore(t)}
	for name, content := range map[string]string{
		"no JSON":                    `{"global":`,
		"no rule set":                `{}`,
		"a rule set of another type": `{"global":[]}`,
		"a list of another type":     `{"global":{"room":{}}}`,
		"a rule without an id":       `{"global":{"room":[{"default":false,"enabled":true,"actions":[]}]}}`,
		"a member twice":             `{"global":{"room":[],"room":[]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			user := newUser()
			plant(t, user, content)
			wantUnreadable := func(when string, err error) {
				t.Helper()
				if fault.KindOf(err) != fault.Database {
					t.Errorf("%s: got error %v, want one of kind %s", when, err, fault.Database)
				}
			}
			for _, host := range hosts {
				_, err := host.Load(t.Context(), user)
				wantUnreadable("Load", err)
				wantUnreadable("LoadMany", host.LoadMany(t.Context(), []mxid.UserID{user})[user].Err)
				wantUnreadable("Update", updateRules(t.Context(), host, user, putRoom("a")))
			}
			_, err := hosts[0].Load(t.Context(), user)
			wantUnreadable("Load after the updates", err)
			wantNoError(t, hosts[1].Delete(t.Context(), user))
			wantNoRules(t, hosts[0], user)
		})
	}
}

func foreignMembers(t *testing.T, newStore func(*testing.T) module.RuleStore, plant Plant) {
	hosts, user := [2]module.RuleStore{newStore(t), newStore(t)}, newUser()
	const rule = `{"rule_id":"a","default":false,"enabled":true,"actions":["notify",{"x":1e400}],"org.example.rule":{"y":0.10}}`
	const content = `{"global":{"override":[],"content":[],"room":[` + rule +
		`],"sender":[],"underride":[],"org.example.kind":[null]},"org.example.content":{"z":[12345678901234567890]}}`
	plant(t, user, content)
	want := func(when string, members ...string) {
		t.Helper()
		loaded, err := hosts[0].Load(t.Context(), user)
		wantNoError(t, err)
		text := string(loaded.AppendJSON(nil))
		for _, member := range members {
			if !strings.Contains(text, member) {
				t.Errorf("%s: %s is missing in %s", when, member, text)
			}
		}
	}
	members := []string{rule, `"org.example.kind":[null]`, `"org.example.content":{"z":[12345678901234567890]}`}
	want("as it was stored", members...)
	wantNoError(t, updateRules(t.Context(), hosts[1], user, putRoom("b")))
	want("after a change", append(members, `"rule_id":"b"`)...)
	wantNoError(t, updateRules(t.Context(), hosts[1], user, func(rules *pushrule.Ruleset, _ bool) error {
		return rules.Delete(pushrule.Room, "b")
	}))
	want("after another", members...)
}

func foreignVersions(t *testing.T, newStore func(*testing.T) module.RuleStore, plant Plant) {
	hosts, user := [2]module.RuleStore{newStore(t), newStore(t)}, newUser()
	seen := map[int64]string{}
	next := func(what string) {
		t.Helper()
		version := wantOneVersion(t, hosts, user)
		if before, found := seen[version]; found {
			t.Errorf("%s has version %d, as %s had", what, version, before)
		}
		seen[version] = what
	}
	plant(t, user, `{"global":{"room":[]}}`)
	next("what somebody else wrote first")
	plant(t, user, `{"global":{"sender":[]}}`)
	next("what somebody else wrote then")
	wantNoError(t, updateRules(t.Context(), hosts[0], user, putRoom("a")))
	next("the store's change")
	plant(t, user, `{"global":{"override":[]}}`)
	next("what somebody else wrote last")
}

// wantOneVersion returns the version of a user's rules, which must be the same for each
// host and method.
func wantOneVersion(t *testing.T, hosts [2]module.RuleStore, user mxid.UserID) int64 {
	t.Helper()
	first, err := hosts[0].Load(t.Context(), user)
	wantNoError(t, err)
	for _, host := range hosts {
		loaded, err := host.Load(t.Context(), user)
		wantNoError(t, err)
		asked := host.Versions(t.Context(), []mxid.UserID{user})[user]
		wantNoError(t, asked.Err)
		if loaded.Version != first.Version || asked.Value != first.Version {
			t.Errorf("versions of one content: %d, %d and %d", first.Version, loaded.Version, asked.Value)
		}
	}
	return first.Version
}

func manyVersions(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	store := newStore(t)
	none, some, bad := newUser(), newUser(), badUsers()
	stored, err := store.Update(t.Context(), some, putRoom("a"))
	wantNoError(t, err)
	users := append([]mxid.UserID{none, some, some}, bad...)
	versions := store.Versions(t.Context(), users)
	if len(versions) != 2+len(bad) || versions[bad[0]].Err == nil {
		t.Errorf("got %d results, want %d", len(versions), 2+len(bad))
	}
	for user, want := range map[mxid.UserID]int64{none: 0, some: stored.Version} {
		if got := versions[user]; got.Err != nil || got.Value != want {
			t.Errorf("got version %d, error %v, want %d", got.Value, got.Err, want)
		}
	}
	wantNoError(t, store.Delete(t.Context(), some))
	if got := store.Versions(t.Context(), users)[some]; got.Err != nil || got.Value != 0 {
		t.Errorf("after the deletion: version %d, error %v", got.Value, got.Err)
	}
}
