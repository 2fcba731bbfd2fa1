package pushrule_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func TestServerDefaultEqualsTheGoldenFile(t *testing.T) {
	const golden = "testdata/defaults.json"
	s := pushrule.ServerDefault("@alice:example.org")
	var got bytes.Buffer
	if err := json.Indent(&got, s.AppendJSON(nil), "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got %s", got.Bytes())
	}
}

// The file holds the definitions of the Matrix specification, "Predefined
// Rules", v1.17, as they stand there.
func TestServerDefaultEqualsTheSpecificationsDefinitions(t *testing.T) {
	const placeholder = "[the user's Matrix ID]"
	specified, err := os.ReadFile("testdata/spec_predefined_rules.json")
	if err != nil {
		t.Fatal(err)
	}
	var kinds map[pushrule.Kind][]json.RawMessage
	if err := json.Unmarshal(specified, &kinds); err != nil {
		t.Fatal(err)
	}
	if n := len(kinds[pushrule.Override]) + len(kinds[pushrule.Underride]); n != 15 || len(kinds) != 2 {
		t.Fatalf("the file holds %d rules in %d kinds, want 15 in 2", n, len(kinds))
	}
	for name, user := range map[string]string{
		"a plain user id":           "@alice:example.org",
		"quotes and backslashes":    `@"al\ice":example.org`,
		"characters beyond ASCII":   "@\u00e4\u2028\U0001f600:example.org",
		"braces, brackets, commas":  `@a},{"x":[1]:example.org`,
		"what HTML would escape":    "@<a&b>:example.org",
		"control characters":        "@a\x00\n\x7f:example.org",
		"the placeholder of others": "@[the user]:example.org",
	} {
		t.Run(name, func(t *testing.T) {
			quoted, err := json.Marshal(user)
			if err != nil {
				t.Fatal(err)
			}
			defaults := pushrule.ServerDefault(mxid.UserID(user))
			for _, kind := range pushrule.Kinds() {
				list := defaults.List(kind)
				if len(list) != len(kinds[kind]) {
					t.Fatalf("%d rules of kind %s, want %d", len(list), kind, len(kinds[kind]))
				}
				for i, rule := range list {
					got := string(rule.AppendJSON(nil, kind))
					want := strings.ReplaceAll(string(kinds[kind][i]), `"`+placeholder+`"`, string(quoted))
					if !sameJSON(t, got, want) {
						t.Errorf("rule %d of kind %s\ngot  %s\nwant %s", i, kind, got, want)
					}
				}
			}
		})
	}
}

func TestServerDefaultIsMadeAnewForEachUser(t *testing.T) {
	first := pushrule.ServerDefault("@alice:example.org")
	want := encode(&first)
	other := pushrule.ServerDefault("@bob:example.org")
	for _, kind := range pushrule.Kinds() {
		for _, rule := range other.List(kind) {
			if err := other.SetActions(kind, rule.ID, []pushrule.Action{`"x"`}); err != nil {
				t.Fatal(err)
			}
		}
	}
	again := pushrule.ServerDefault("@alice:example.org")
	if encode(&first) != want || encode(&again) != want {
		t.Error("a change to one user's rules shows in another's")
	}
}

func TestExactlyTheThreeLegacyIDsAreLegacy(t *testing.T) {
	legacy := []string{".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"}
	for _, id := range legacy {
		if !pushrule.IsLegacy(id) {
			t.Errorf("%s is not legacy", id)
		}
		for _, kind := range pushrule.Kinds() {
			if s := setOf(t, kind, "A .m.rule.other "+id); !s.HasLegacy() {
				t.Errorf("%s in %s goes unnoticed", id, kind)
			}
		}
	}
	defaults := pushrule.ServerDefault("@alice:example.org")
	if defaults.HasLegacy() {
		t.Error("the defaults have a legacy rule")
	}
	for _, id := range []string{"", "roomnotif", "m.rule.roomnotif", ".m.rule.Roomnotif", ".m.rule.roomnotif.x", ".m.rule.master"} {
		if s := setOf(t, pushrule.Override, id); pushrule.IsLegacy(id) || s.HasLegacy() {
			t.Errorf("%q is legacy", id)
		}
	}
}

func TestMergeDefaultsKeepsWhatBelongsToTheUser(t *testing.T) {
	const alice = "@alice:example.org"
	rule := func(id string, isDefault, enabled bool, rest string) string {
		return fmt.Sprintf(`{"rule_id":%q,"default":%t,"enabled":%t%s}`, id, isDefault, enabled, rest)
	}
	master := rule(".m.rule.master", true, true, `,"conditions":[{"kind":"x"}],"actions":["y"]`)
	userA := rule("A", false, false, `,"conditions":[{"kind":"custom","n":1e400}],"actions":[],"x.extra":[1]`)
	userB := rule("B", false, true, `,"actions":["dont_notify"]`)

	fresh := pushrule.ServerDefault(alice)
	const freshOverride = ".m.rule.suppress_notices .m.rule.invite_for_me .m.rule.member_event .m.rule.is_user_mention " +
		".m.rule.is_room_mention .m.rule.tombstone .m.rule.reaction .m.rule.room.server_acl .m.rule.suppress_edits"
	const freshUnderride = ".m.rule.call .m.rule.encrypted_room_one_to_one .m.rule.room_one_to_one .m.rule.message .m.rule.encrypted"

	for name, test := range map[string]struct {
		stored string
		order  map[pushrule.Kind]string // of the kinds that are not as in the defaults
		rules  map[string]string        // override rules by id, as they must be
		kept   string                   // must be in the result as it is
	}{
		"an empty set": {stored: `{}`},
		"the defaults": {stored: encode(&fresh)},
		"user rules stay above the defaults, in their order": {
			stored: `{"override":[` + userB + `,` + master + `,` + rule(".m.rule.reaction", true, true, `,"actions":[]`) + `,` + userA + `],
				"underride":[` + rule(".m.rule.call", true, true, `,"actions":[]`) + `,` + userA + `],
				"room":[` + userB + `,` + userA + `]}`,
			order: map[pushrule.Kind]string{
				pushrule.Override:  ".m.rule.master B A " + freshOverride,
				pushrule.Underride: "A " + freshUnderride,
				pushrule.Room:      "B A",
			},
			rules: map[string]string{
				"A": userA,
				"B": rule("B", false, true, `,"conditions":[],"actions":["dont_notify"]`),
			},
		},
		"enabled, actions and unknown fields of a default are the user's, its definition is not": {
			stored: `{"override":[` + master + `,` +
				rule(".m.rule.tombstone", false, false, `,"conditions":[],"actions":["a",{"n":9007199254740993}],"x":{"y":0.10}`) + `]}`,
			rules: map[string]string{
				".m.rule.master": rule(".m.rule.master", true, true, `,"conditions":[],"actions":["y"]`),
				".m.rule.tombstone": rule(".m.rule.tombstone", true, false, `,"actions":["a",{"n":9007199254740993}],"x":{"y":0.10},"conditions":[
					{"kind":"event_match","key":"type","pattern":"m.room.tombstone"},{"kind":"event_match","key":"state_key","pattern":""}]`),
			},
		},
		"a muted default stays muted": {
			stored: `{"override":[` + rule(".m.rule.is_room_mention", true, true, `,"actions":[]`) + `]}`,
			rules: map[string]string{
				".m.rule.is_room_mention": rule(".m.rule.is_room_mention", true, true, `,"actions":[],"conditions":[
					{"kind":"event_property_is","key":"content.m\\.mentions.room","value":true},
					{"kind":"sender_notification_permission","key":"room"}]`),
			},
		},
		"legacy and stale defaults go, in any kind": {
			stored: `{"override":[` + rule(".m.rule.roomnotif", true, true, `,"actions":[]`) + `,` + userA + `,` +
				rule(".org.example.stale", true, true, `,"actions":[]`) + `,` +
				rule("stale-without-dot", true, true, `,"actions":[]`) + `,` +
				rule(".not-marked-as-default", false, true, `,"actions":[]`) + `],
				"content":[` + rule(".m.rule.contains_user_name", true, true, `,"actions":[],"pattern":"alice"`) + `],
				"room":[` + rule(".m.rule.contains_display_name", true, true, `,"actions":[]`) + `,` + userB + `],
				"sender":[` + rule(".m.rule.call", true, false, `,"actions":[]`) + `]}`,
			order: map[pushrule.Kind]string{pushrule.Override: ".m.rule.master A " + freshOverride, pushrule.Room: "B"},
			rules: map[string]string{"A": userA},
		},
		"unknown kinds stay": {
			stored: `{"org.example.kind":[{"rule_id":".m.rule.roomnotif"},9007199254740993],"override":[]}`,
			kept:   `"org.example.kind":[{"rule_id":".m.rule.roomnotif"},9007199254740993]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, test.stored)
			original := s
			s.MergeDefaults(alice)
			if encode(&original) != test.stored {
				t.Error("the copy taken before was changed")
			}
			if s.HasLegacy() {
				t.Error("a legacy rule is left")
			}
			for _, kind := range pushrule.Kinds() {
				want, ok := test.order[kind]
				if !ok {
					want = idsOf(&fresh, kind)
				}
				if got := idsOf(&s, kind); got != want {
					t.Errorf("%s\ngot  %s\nwant %s", kind, got, want)
				}
			}
			for id, want := range test.rules {
				got, _ := s.Rule(pushrule.Override, id)
				if text := string(got.AppendJSON(nil, pushrule.Override)); !sameJSON(t, text, want) {
					t.Errorf("%s\ngot  %s\nwant %s", id, text, want)
				}
			}
			if !strings.Contains(encode(&s), test.kept) {
				t.Errorf("got %s, want %s in it", encode(&s), test.kept)
			}
			once := encode(&s)
			s.MergeDefaults(alice)
			if encode(&s) != once {
				t.Error("a second merge changes something")
			}
		})
	}
}
