package match_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func explainedSet(t *testing.T) pushrule.Ruleset {
	t.Helper()
	set := pushrule.ServerDefault("@alice:example.org")
	put := func(kind pushrule.Kind, id string, d pushrule.Draft) {
		d.Actions = append(d.Actions, `"notify"`, `{"set_tweak":"sound","value":"cake.wav"}`)
		if err := set.Put(kind, id, d, pushrule.Position{}); err != nil {
			t.Fatal(err)
		}
	}
	put(pushrule.Override, "quiet", pushrule.Draft{Conditions: []pushrule.Condition{`{"kind":"event_match","key":"room_id","pattern":"!q*:example.org"}`}})
	put(pushrule.Override, "strange", pushrule.Draft{Conditions: []pushrule.Condition{`{"kind":"org.example.moon","phase":"full"}`}})
	put(pushrule.Override, "party", pushrule.Draft{Conditions: []pushrule.Condition{
		`{"kind":"room_member_count","is":">10"}`, `{"kind":"sender_notification_permission","key":"party"}`,
	}})
	put(pushrule.Override, "name", pushrule.Draft{Conditions: []pushrule.Condition{`{"kind":"contains_display_name"}`}})
	put(pushrule.Override, ".m.rule.roomnotif"[1:], pushrule.Draft{Conditions: []pushrule.Condition{`{"kind":"event_property_is","key":"content.n","value":1}`}})
	put(pushrule.Content, "cake", pushrule.Draft{Pattern: "cake*lie"})
	put(pushrule.Room, "!quiet:example.org", pushrule.Draft{})
	put(pushrule.Sender, "@bob:example.org", pushrule.Draft{})
	return set
}

func withKnocks(t *testing.T) pushrule.Defaults {
	t.Helper()
	defaults, err := pushrule.NewDefaults([]pushrule.Feature{pushrule.Knocks})
	if err != nil {
		t.Fatal(err)
	}
	return defaults
}

func TestExplanations(t *testing.T) {
	t.Parallel()
	rules, features := match.Compile(explainedSet(t)), match.Compile(withKnocks(t).For("@alice:example.org"))
	level := int64(20)
	const knock = `{"type":"m.room.member","sender":"@carol:example.org","state_key":"@carol:example.org","content":{"membership":"knock"}}`
	for name, test := range map[string]struct {
		event string
		facts match.Facts
		rules *match.Rules
	}{
		"keyword": {
			`{"type":"m.room.message","room_id":"!a:example.org","sender":"@bob:example.org","content":{"msgtype":"m.text","body":"The Cake is a lie"}}`,
			match.Facts{User: "@alice:example.org", DisplayName: "Alice", Room: match.Room{MemberCount: 3, Power: &match.Power{}}},
			rules,
		},
		"nothing_known": {
			`{"type":"org.example.thing","sender":"@carol:example.org","content":{"n":1.5,"m.mentions":{"user_ids":["@bob:example.org",{},7]},"body":"` + strings.Repeat("many words ", 30) + `"}}`,
			match.Facts{User: "@alice:example.org"},
			rules,
		},
		"mention_of_all": {
			`{"type":"m.room.message","room_id":"!a:example.org","sender":"@carol:example.org","content":{"msgtype":"m.text","body":"Hi all","m.mentions":{"room":true}}}`,
			match.Facts{User: "@alice:example.org", DisplayName: "Alice", Room: match.Room{MemberCount: 12, Power: &match.Power{Sender: 20, Notifications: map[string]int64{"party": 25}}}},
			rules,
		},
		"conditions": {
			`{"type":"m.room.message","room_id":"!a:example.org","sender":"@carol:example.org","content":{"list":["a",1]}}`,
			match.Facts{User: "@alice:example.org", Power: &level, Room: match.Room{MemberCount: 1, Power: &match.Power{Permissions: map[string]int64{"invite": 50}}}},
			match.Compile(readSet(t, `{"override":[
				{"rule_id":"a","default":false,"enabled":true,"actions":[],"conditions":[{"kind":"room_member_count","is":"2"}]},
				{"rule_id":"b","default":false,"enabled":true,"actions":[],"conditions":[{"kind":"event_property_contains","key":"content.list","value":"b"}]},
				{"rule_id":"c","default":false,"enabled":true,"actions":[],"conditions":[{"kind":"recipient_permission","key":"invite"}]}]}`)),
		},
		"own": {
			`{"type":"m.room.message","room_id":"!quiet:example.org","sender":"@alice:example.org","content":{"body":"Alice"}}`,
			match.Facts{User: "@alice:example.org", DisplayName: "Alice"},
			rules,
		},
		"knock": {
			knock, match.Facts{User: "@alice:example.org", Power: &level, Room: match.Room{Power: &match.Power{Permissions: map[string]int64{"invite": 50}}}}, features,
		},
		"knock_unknown_level": {knock, match.Facts{User: "@alice:example.org", Room: match.Room{Power: &match.Power{}}}, features},
		"knock_unknown_room":  {knock, match.Facts{User: "@alice:example.org", Power: &level}, features},
	} {
		t.Run(name, func(t *testing.T) {
			explanation := test.rules.Explain(readEvent(t, test.event), test.facts)
			golden(t, "explain_"+name+".txt", explanation.String())
			var read struct {
				Rules  []struct{ Verdict, Condition any }
				Result map[string]any
			}
			if err := json.Unmarshal([]byte(encode(explanation)), &read); err != nil || len(read.Rules) != len(explanation.Rules) || len(read.Result) != 6 {
				t.Errorf("as JSON: %s, %v", encode(explanation), err)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s", path, got)
	}
}

func TestExplainAgreesWithEvaluate(t *testing.T) {
	t.Parallel()
	seeds := uint64(1000)
	if testing.Short() {
		seeds /= 10
	}
	for seed := range seeds {
		g := newGenerator(seed)
		rules := match.Compile(readSet(t, encode(g.set())))
		event, facts := readEvent(t, encode(g.event())), g.facts()
		explanation, result := rules.Explain(event, facts), rules.Evaluate(event, facts)
		kind, id := result.Rule()
		decides := ""
		for _, rule := range explanation.Rules {
			if rule.Verdict == match.Decides {
				decides += string(rule.Kind) + " " + rule.RuleID
			}
			if (rule.Verdict == match.Fails) != (rule.Saw != "") {
				t.Fatalf("seed %d: %+v", seed, rule)
			}
		}
		if want := string(kind) + " " + id; explanation.Result != result || result.Matched() && decides != want || !result.Matched() && decides != "" {
			t.Fatalf("seed %d: %s decides, but the result is of %s", seed, decides, want)
		}
	}
}
