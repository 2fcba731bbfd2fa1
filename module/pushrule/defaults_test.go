package pushrule_test

import (
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

// The file has the definitions of the Matrix specification, "Predefined Rules", v1.17.
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

func TestServerDefaultSharesNothingBetweenUsers(t *testing.T) {
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

func TestIsLegacy(t *testing.T) {
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

func TestHostDefaultRulesHaveTheirPlaces(t *testing.T) {
	type list = []pushrule.DefaultRule
	rule := func(kind pushrule.Kind, id, before string) pushrule.DefaultRule {
		r := pushrule.DefaultRule{Kind: kind, ID: id, Before: before}
		if kind.HasPattern() {
			r.Pattern = "word"
		}
		return r
	}
	for name, test := range map[string]struct {
		extra list
		kind  pushrule.Kind
		want  string // with … for the specification's rules of this kind
	}{
		"none":                          {nil, pushrule.Override, "…"},
		"the last of its kind":          {list{rule(pushrule.Override, ".a", "")}, pushrule.Override, "… .a"},
		"in the order given":            {list{rule(pushrule.Room, ".b", ""), rule(pushrule.Room, ".a", "")}, pushrule.Room, ".b .a"},
		"the first of a kind":           {list{rule(pushrule.Content, ".a", "")}, pushrule.Content, ".a"},
		"above a rule":                  {list{rule(pushrule.Underride, ".a", ".m.rule.call")}, pushrule.Underride, ".a …"},
		"two above the same":            {list{rule(pushrule.Underride, ".a", ".m.rule.call"), rule(pushrule.Underride, ".b", ".m.rule.call")}, pushrule.Underride, ".a .b …"},
		"above an earlier one":          {list{rule(pushrule.Sender, ".a", ""), rule(pushrule.Sender, ".b", ".a")}, pushrule.Sender, ".b .a"},
		"one of another kind":           {list{rule(pushrule.Sender, ".a", "")}, pushrule.Override, "…"},
		"an id beyond ASCII":            {list{rule(pushrule.Sender, ".\u00e9 \U0001f600\"", "")}, pushrule.Sender, ".\u00e9 \U0001f600\""},
		"an id with more dots":          {list{rule(pushrule.Sender, "..", ""), rule(pushrule.Sender, ".a.b", "")}, pushrule.Sender, ".. .a.b"},
		"an id like that of the master": {list{rule(pushrule.Override, ".m.rule.master2", "")}, pushrule.Override, "… .m.rule.master2"},
	} {
		t.Run(name, func(t *testing.T) {
			defaults, err := pushrule.NewDefaults(nil, test.extra...)
			if err != nil {
				t.Fatal(err)
			}
			specified, s := pushrule.ServerDefault(modelUser), defaults.For(modelUser)
			want := strings.Replace(test.want, "…", idsOf(&specified, test.kind), 1)
			if got := idsOf(&s, test.kind); got != want || s.Len() != specified.Len()+len(test.extra) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if again := mustRead(t, encode(&s)); !again.IsCurrent(s) {
				t.Error("the set is not current when it is read back")
			}
		})
	}
}

func TestHostDefaultRuleBelowTheMasterRule(t *testing.T) {
	s := hostTable()
	if got := idsOf(&s, pushrule.Override); !strings.HasPrefix(got, ".m.rule.master .host.override .m.rule.suppress_notices ") {
		t.Errorf("got %s", got)
	}
}

func TestZeroDefaultsEqualTheSpecification(t *testing.T) {
	s, specified := pushrule.Defaults{}.For(modelUser), pushrule.ServerDefault(modelUser)
	if encode(&s) != encode(&specified) {
		t.Errorf("got %s", encode(&s))
	}
}

func TestHostDefaultRuleIsWrittenCompletely(t *testing.T) {
	for want, rule := range map[string]pushrule.DefaultRule{
		`{"rule_id":".a","default":true,"enabled":true,"conditions":[{"kind":"x","n":1e400}, {"kind":""}],"actions":["notify",{"set_tweak":"sound","value":0.10}]}`: {
			Kind: pushrule.Override, ID: ".a",
			Conditions: []pushrule.Condition{`{"kind":"x","n":1e400}`, `{"kind":""}`},
			Actions:    []pushrule.Action{`"notify"`, `{"set_tweak":"sound","value":0.10}`},
		},
		`{"rule_id":".a","default":true,"enabled":false,"pattern":"w*\"","actions":[]}`: {
			Kind: pushrule.Content, ID: ".a", Disabled: true, Pattern: `w*"`,
		},
		`{"rule_id":".a","default":true,"enabled":true,"conditions":[],"actions":[]}`: {Kind: pushrule.Underride, ID: ".a"},
		`{"rule_id":".a","default":true,"enabled":true,"actions":["x"]}`:              {Kind: pushrule.Sender, ID: ".a", Actions: []pushrule.Action{`"x"`}},
	} {
		defaults, err := pushrule.NewDefaults(nil, rule)
		if err != nil {
			t.Fatal(err)
		}
		s := defaults.For(modelUser)
		got, _ := s.Rule(rule.Kind, ".a")
		if text := string(got.AppendJSON(nil, rule.Kind)); !sameJSON(t, text, want) {
			t.Errorf("got  %s\nwant %s", text, want)
		}
	}
}

func TestInvalidDefaultRulesAreRefused(t *testing.T) {
	override := func(r pushrule.DefaultRule) pushrule.DefaultRule {
		r.Kind, r.ID = pushrule.Override, ".a"
		return r
	}
	action := func(text pushrule.Action) pushrule.DefaultRule {
		return override(pushrule.DefaultRule{Actions: []pushrule.Action{`"x"`, text}})
	}
	condition := func(text pushrule.Condition) pushrule.DefaultRule {
		return override(pushrule.DefaultRule{Conditions: []pushrule.Condition{text}})
	}
	named := func(id string) pushrule.DefaultRule { return pushrule.DefaultRule{Kind: pushrule.Room, ID: id} }
	const (
		noID      = "want an id of a dot and a valid rule id"
		legacy    = "want an id other than the three legacy rules"
		duplicate = "want an id that is unique among the default rules of all kinds"
		submit    = "want a rule that a client may submit: "
		noText    = "want the text of one JSON value for each action and condition"
	)
	for name, test := range map[string]struct {
		rule pushrule.DefaultRule
		want string
	}{
		"no kind":                              {pushrule.DefaultRule{ID: ".a"}, `kind is "", want one of ["override" "content" "room" "sender" "underride"]`},
		"an unknown kind":                      {pushrule.DefaultRule{Kind: "x", ID: ".a"}, `kind is "x", want one of ["override" "content" "room" "sender" "underride"]`},
		"no id":                                {named(""), noID},
		"an id without a dot":                  {named("a"), noID},
		"a slash":                              {named(".a/b"), noID},
		"a legacy id":                          {named(".m.rule.roomnotif"), legacy},
		"a specified id":                       {pushrule.DefaultRule{Kind: pushrule.Override, ID: ".m.rule.tombstone"}, duplicate},
		"the master":                           {named(".m.rule.master"), duplicate},
		"an id given before":                   {named(".first"), duplicate},
		"above the master":                     {override(pushrule.DefaultRule{Before: ".m.rule.master"}), "want a rule below .m.rule.master, which must be first"},
		"above nothing known":                  {override(pushrule.DefaultRule{Before: ".b"}), `before is ".b", want a default rule of kind override that is already in the table`},
		"above one of other kind":              {override(pushrule.DefaultRule{Before: ".m.rule.call"}), `before is ".m.rule.call", want a default rule of kind override that is already in the table`},
		"conditions of a room":                 {pushrule.DefaultRule{Kind: pushrule.Room, ID: ".a", Conditions: []pushrule.Condition{`{}`}}, "want no conditions for kind room"},
		"a pattern of override":                {override(pushrule.DefaultRule{Pattern: "x"}), "want no pattern for kind override"},
		"content, no pattern":                  {pushrule.DefaultRule{Kind: pushrule.Content, ID: ".a"}, submit + "pattern must be a non-empty string"},
		"a pattern, no UTF-8":                  {pushrule.DefaultRule{Kind: pushrule.Content, ID: ".a", Pattern: "\xff"}, "want a pattern of valid UTF-8"},
		"a number as action":                   {action(`1`), submit + "actions[1] must be a string or an object"},
		"an action twice a key":                {action(`{"a":1,"a":2}`), submit + "Key given twice: actions[1].a"},
		"two actions in one":                   {action(`"a","b"`), noText},
		"an action that breaks out":            {action(`"a"],"enabled":false,"x":["y"`), submit + "Key given twice: enabled"},
		"an action that adds a member":         {action(`"a"],"x":["y"`), noText},
		"a condition's kind that is no string": {condition(`{"kind":1}`), submit + "conditions[0].kind must be a string"},
		"a condition that lacks a member":      {condition(`{"kind":"event_match","key":"type"}`), submit + "Missing parameter: conditions[0].pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			first := pushrule.DefaultRule{Kind: pushrule.Sender, ID: ".first"}
			defaults, err := pushrule.NewDefaults(nil, first, test.rule)
			if want := fmt.Sprintf("default rule %q: %s", test.rule.ID, test.want); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if s := defaults.For(modelUser); s.Len() != 15 {
				t.Errorf("a table of %d rules came back beside the error", s.Len())
			}
		})
	}
}

func TestErrorNamesEachFaultyDefaultRule(t *testing.T) {
	const want = "default rule \"a\": want an id of a dot and a valid rule id\n" +
		"default rule \".c\": kind is \"x\", want one of [\"override\" \"content\" \"room\" \"sender\" \"underride\"]"
	_, err := pushrule.NewDefaults(nil,
		pushrule.DefaultRule{Kind: pushrule.Room, ID: "a"},
		pushrule.DefaultRule{Kind: pushrule.Room, ID: ".b"},
		pushrule.DefaultRule{Kind: "x", ID: ".c"},
	)
	if fmt.Sprint(err) != want {
		t.Errorf("got %v", err)
	}
}

func TestAFeatureWithoutRulesIsRefused(t *testing.T) {
	_, err := pushrule.NewDefaults([]pushrule.Feature{pushrule.Polls, {}})
	if want := `feature "" has no rules, want one of ` + pushrule.FeatureNames(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestTableCopiesTheHostsRules(t *testing.T) {
	actions, conditions := []pushrule.Action{`"x"`}, []pushrule.Condition{`{"kind":"x"}`}
	extra := []pushrule.DefaultRule{{Kind: pushrule.Override, ID: ".a", Actions: actions, Conditions: conditions}}
	defaults, err := pushrule.NewDefaults(nil, extra...)
	if err != nil {
		t.Fatal(err)
	}
	s := defaults.For(modelUser)
	want := encode(&s)
	actions[0], conditions[0], extra[0].ID = `"y"`, `{"y":1}`, ".b"
	rule, _ := s.Rule(pushrule.Override, ".a")
	rule.Actions[0], rule.Conditions[0] = `"z"`, `{"z":1}`
	if again := defaults.For(modelUser); encode(&again) != want {
		t.Errorf("got  %s\nwant %s", encode(&again), want)
	}
}

func TestIsCurrentIfAMergeChangesNoRule(t *testing.T) {
	fresh := pushrule.ServerDefault(modelUser)
	current := encode(&fresh)
	const tombstone = `{"rule_id":".m.rule.tombstone","default":true,"enabled":true,`
	const user = `{"rule_id":"A","default":false,"enabled":true,"conditions":[],"actions":[]}`
	for name, test := range map[string]struct {
		old, new string // replaces a text of the defaults
		want     bool
	}{
		"the defaults":          {"", "", true},
		"white space":           {`{"override":[`, `{ "override" : [ `, true},
		"a default is disabled": {tombstone, strings.Replace(tombstone, `"enabled":true`, `"enabled":false`, 1), true},
		"a default has more":    {tombstone, tombstone + `"x":1,`, true},
		"a user's rule":         {`"room":[`, `"room":[` + user, true},
		"below the defaults":    {`],"content":`, `,` + user + `],"content":`, false},
		"above the master":      {`{"override":[`, `{"override":[` + user + `,`, false},
		"not marked":            {tombstone, strings.Replace(tombstone, `"default":true`, `"default":false`, 1), false},
		"another definition":    {`"m.room.tombstone"`, `"m.room.Tombstone"`, false},
		"a legacy rule":         {`"room":[`, `"room":[{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":[]}`, false},
		"another id":            {`".m.rule.tombstone"`, `".m.rule.x"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, strings.Replace(current, test.old, test.new, 1))
			text := encode(&s)
			if got := s.IsCurrent(fresh); got != test.want || encode(&s) != text {
				t.Errorf("got %t for %s, want %t", got, encode(&s), test.want)
			}
		})
	}
}

func TestMergeRestoresTheDefaultPattern(t *testing.T) {
	table := hostTable()
	s := mustRead(t, strings.Replace(encode(&table), `"pattern":"word"`, `"pattern":"Word"`, 1))
	if s.IsCurrent(table) {
		t.Error("a set is current with another pattern than the table's")
	}
	if s.MergeDefaults(table); encode(&s) != encode(&table) {
		t.Errorf("got  %s\nwant %s", encode(&s), encode(&table))
	}
}

func TestSecondMergeChangesNothing(t *testing.T) {
	tables := []pushrule.Ruleset{pushrule.ServerDefault(modelUser), hostTable(), pushrule.ServerDefault("@bob:example.org"), tableOf(t, pushrule.Polls)}
	pushrule.CheckDrawn(t, func(d pushrule.Draws) {
		s := drawDamaged(t, d)
		table := pushrule.DrawOne(d, tables...)
		current, before := s.IsCurrent(table), reencode(t, s)
		s.MergeDefaults(table)
		once := encode(&s)
		if current != (once == before) {
			t.Fatalf("current %t, merged as\n%s\nwas\n%s", current, once, before)
		}
		again := mustRead(t, once)
		for _, merged := range []pushrule.Ruleset{s, again} {
			if !merged.IsCurrent(table) {
				t.Fatalf("not current after the merge\n%s", once)
			}
			if merged.MergeDefaults(table); encode(&merged) != once {
				t.Fatalf("got  %s\nwant %s", encode(&merged), once)
			}
		}
	})
}

// drawDamaged makes sets that no client can make: with repeated ids, and with defaults
// in wrong places.
func drawDamaged(t testing.TB, d pushrule.Draws) pushrule.Ruleset {
	ids := []string{
		"A", "!old:hs", "!new:hs", "mute !old:hs", "mute !new:hs", "A:!new:hs",
		".m.rule.master", ".m.rule.tombstone", ".m.rule.call", ".m.rule.roomnotif", ".host.override", ".host.room", ".x",
		".org.matrix.msc3930.rule.poll_end", ".m.rule.poll_end",
	}
	conditions := []string{
		`{}`, `null`, `[1]`, `{"kind":"x","n":1e400}`, `{"kind":1,"key":"room_id","pattern":"!old:hs"}`, inRoom("!old:hs"), inRoom("!new:hs"),
		`{ "value" : "!old:hs", "kind":"event_property_is","key":"room_id" }`,
	}
	flip := func() bool { return d.IntN(2) == 0 }
	var kinds []string
	for _, kind := range pushrule.Kinds() {
		rules := pushrule.DrawList(d, 0, 5, func() string {
			return fmt.Sprintf(`{"rule_id":%q,"default":%t,"enabled":%t,"conditions":[%s],"pattern":"p","actions":["x"],"x":1}`,
				pushrule.DrawOne(d, ids...), flip(), flip(),
				strings.Join(pushrule.DrawList(d, 0, 2, func() string { return pushrule.DrawOne(d, conditions...) }), ","))
		})
		kinds = append(kinds, fmt.Sprintf(`"%s":[%s]`, kind, strings.Join(rules, ",")))
	}
	return mustRead(t, "{"+strings.Join(kinds, ",")+"}")
}
