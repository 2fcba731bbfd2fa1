package pushrule_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

func tableOf(t testing.TB, features ...pushrule.Feature) pushrule.Ruleset {
	t.Helper()
	defaults, err := pushrule.NewDefaults(features)
	if err != nil {
		t.Fatal(err)
	}
	return defaults.For(modelUser)
}

// The golden files have a line for each rule, to show its place.
func TestFeatureRulesHaveTheirPlaces(t *testing.T) {
	for _, feature := range pushrule.Features() {
		name, set := feature.Name, tableOf(t, feature)
		var lines strings.Builder
		for _, kind := range pushrule.Kinds() {
			for _, rule := range set.List(kind) {
				fmt.Fprintf(&lines, "%s %s\n", kind, rule.AppendJSON(nil, kind))
			}
		}
		golden := "testdata/feature_" + name + ".txt"
		if *update {
			if err := os.WriteFile(golden, []byte(lines.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if lines.String() != string(want) {
			t.Errorf("%s: got\n%s", golden, lines.String())
		}
		if !set.IsCanonical() {
			t.Errorf("%s is not canonical", name)
		}
	}
}

// With all features, the rules of each keep their places. At one place, rules follow the order of the features.
func TestFeaturesKeepTheirPlacesBesideOthers(t *testing.T) {
	all := tableOf(t, pushrule.Features()...)
	if !all.IsCanonical() {
		t.Error("the set of all features is not canonical")
	}
	for _, feature := range pushrule.Features() {
		alone := tableOf(t, feature)
		for _, kind := range pushrule.Kinds() {
			var kept []string
			for _, id := range strings.Fields(idsOf(&all, kind)) {
				if _, found := alone.Rule(kind, id); found {
					kept = append(kept, id)
				}
			}
			if got, want := strings.Join(kept, " "), idsOf(&alone, kind); got != want {
				t.Errorf("%s, %s rules: got %s, want %s", feature.Name, kind, got, want)
			}
		}
	}
	var places, want []string
	for _, feature := range pushrule.Features() {
		for _, rule := range feature.Rules {
			if rule.Kind == pushrule.Underride {
				want = append(want, rule.ID)
			}
		}
	}
	for _, id := range strings.Fields(idsOf(&all, pushrule.Underride)) {
		if slices.Contains(want, id) {
			places = append(places, id)
		}
	}
	if !slices.Equal(places, want) {
		t.Errorf("underride rules: got %v, want %v", places, want)
	}
}

var featureRow = regexp.MustCompile("(?m)^\\| `(\\w+)`, `([a-z-]+)` \\| (MSC\\d+)")

// The page has a row for each feature, in order, with the names that Go code and flags have.
func TestThePageListsTheFeatures(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("features.go")
	if err != nil {
		t.Fatal(err)
	}
	var rows, features [][2]string
	for _, row := range featureRow.FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, [2]string{row[1], row[2]})
	}
	for _, found := range regexp.MustCompile(`var (\w+) = Feature\{\s+Name: +"([^"]+)"`).FindAllStringSubmatch(string(code), -1) {
		features = append(features, [2]string{found[1], found[2]})
	}
	if len(features) != len(pushrule.Features()) || !slices.Equal(rows, features) {
		t.Errorf("the page has the rows %v, the package %d features: %v", rows, len(pushrule.Features()), features)
	}
}

func TestOrderOfFeaturesDoesNotMatter(t *testing.T) {
	features := pushrule.Features()
	want := tableOf(t, features...)
	slices.Reverse(features)
	if got := tableOf(t, features...); !got.Equal(want) {
		t.Errorf("got  %s\nwant %s", encode(&got), encode(&want))
	}
}

func TestEachRuleOfAFeatureHasAStableID(t *testing.T) {
	for _, feature := range pushrule.Features() {
		for _, rule := range feature.Rules {
			if stable := feature.StableIDs[rule.ID]; !strings.HasPrefix(stable, ".m.rule.") {
				t.Errorf("%s has the stable id %q", rule.ID, stable)
			}
		}
		if len(feature.StableIDs) != len(feature.Rules) {
			t.Errorf("%s: %d rules, %d stable ids", feature.Name, len(feature.Rules), len(feature.StableIDs))
		}
	}
}

// Complement has the same cases in tests/msc3930.
func TestPollRulesPassTheCasesOfComplement(t *testing.T) {
	const prefix = ".org.matrix.msc3930.rule."
	const loud, count = `"notify",{"set_tweak":"sound","value":"default"}`, `{"kind":"room_member_count","is":"2"}`
	ofType := func(name string) string {
		return `{"kind":"event_match","key":"type","pattern":"org.matrix.msc3381.poll.` + name + `"}`
	}
	set := tableOf(t, pushrule.Polls)
	for _, test := range []struct {
		kind                    pushrule.Kind
		id, actions, conditions string
	}{
		{pushrule.Override, "poll_response", ``, ofType("response")},
		{pushrule.Underride, "poll_start_one_to_one", loud, count + `,` + ofType("start")},
		{pushrule.Underride, "poll_end_one_to_one", loud, count + `,` + ofType("end")},
		{pushrule.Underride, "poll_start", `"notify"`, ofType("start")},
		{pushrule.Underride, "poll_end", `"notify"`, ofType("end")},
	} {
		rule, found := set.Rule(test.kind, prefix+test.id)
		if !found || !rule.Default || !rule.Enabled || join(rule.Actions) != test.actions || join(rule.Conditions) != test.conditions {
			t.Errorf("%s: found %t, %+v", test.id, found, rule)
		}
	}
	ids := strings.Fields(idsOf(&set, pushrule.Underride))
	for _, event := range []string{"poll_start", "poll_end"} {
		if slices.Index(ids, prefix+event+"_one_to_one") > slices.Index(ids, prefix+event) {
			t.Errorf("the rule for two members comes after %s", event)
		}
	}
}

func TestInvalidFeaturesAreRefused(t *testing.T) {
	const start = ".org.matrix.msc3930.rule.poll_start"
	own := pushrule.DefaultRule{Kind: pushrule.Underride, ID: start}
	for name, test := range map[string]struct {
		features []pushrule.Feature
		own      []pushrule.DefaultRule
		want     string
	}{
		"two features with the same rule": {
			[]pushrule.Feature{pushrule.Knocks, {Name: "mine", Rules: []pushrule.DefaultRule{pushrule.Knocks.Rules[0]}}}, nil,
			`feature mine: default rule ".org.matrix.msc4506.rule.knock": want an id that is unique among the default rules of all kinds`,
		},
		"a feature and a default rule with the same id": {
			[]pushrule.Feature{pushrule.Polls}, []pushrule.DefaultRule{own},
			`default rule "` + start + `": want an id that is unique among the default rules of all kinds`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := pushrule.NewDefaults(test.features, test.own...); err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
	if _, err := pushrule.NewDefaults([]pushrule.Feature{pushrule.Polls}, pushrule.DefaultRule{Kind: pushrule.Underride, ID: ".a", Before: start}); err != nil {
		t.Errorf("a default rule above a feature's: %v", err)
	}
}

func TestFeaturesAreParsedByName(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "[] <nil>",
		"polls":               "[polls] <nil>",
		"knocks, polls":       "[knocks polls] <nil>",
		"polls,pols":          `[] unknown feature "pols", want some of ` + pushrule.FeatureNames(),
		"encrypted-events,,x": `[] unknown feature "", want some of ` + pushrule.FeatureNames(),
	} {
		features, err := pushrule.ParseFeatures(text)
		names := []string{}
		for _, feature := range features {
			names = append(names, feature.Name)
		}
		if got := fmt.Sprint(names, err); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func setPolls(t testing.TB, table pushrule.Ruleset) pushrule.Ruleset {
	t.Helper()
	for _, change := range []error{
		table.SetEnabled(pushrule.Override, ".org.matrix.msc3930.rule.poll_response", false),
		table.SetActions(pushrule.Underride, ".org.matrix.msc3930.rule.poll_end", []pushrule.Action{}),
		table.Put(pushrule.Room, "!room:hs", plain(), pushrule.Position{}),
	} {
		if change != nil {
			t.Fatal(change)
		}
	}
	return table
}

func TestSettingsSurviveADisabledFeature(t *testing.T) {
	on, off := tableOf(t, pushrule.Polls), tableOf(t)
	s := setPolls(t, on)
	want := encode(&s)

	s.MergeDefaults(off)
	const kept = `"org.pushfx.features_off":[` +
		`{"default":true,"enabled":false,"rule_id":".org.matrix.msc3930.rule.poll_response","actions":[]},` +
		`{"default":true,"enabled":true,"rule_id":".org.matrix.msc3930.rule.poll_end","actions":[]}]`
	if !strings.Contains(encode(&s), kept) || strings.Count(encode(&s), "msc3930") != 2 || !s.IsCurrent(off) || !s.IsCanonical() {
		t.Fatalf("off: %s", encode(&s))
	}
	if err := s.SetEnabled(pushrule.Override, ".org.matrix.msc3930.rule.poll_response", true); err == nil {
		t.Error("a rule of a feature that is off can be changed")
	}
	for range 2 { // the second merge changes nothing
		before := encode(&s)
		if s = mustRead(t, before); !s.IsCanonical() {
			t.Fatal("the set is not canonical when it is read back")
		}
		if s.MergeDefaults(off); encode(&s) != before {
			t.Fatalf("a second merge made %s", encode(&s))
		}
	}
	s.MergeDefaults(tableOf(t, pushrule.Knocks))
	if !strings.Contains(encode(&s), kept) {
		t.Fatalf("another feature on: %s", encode(&s))
	}

	if s.MergeDefaults(on); encode(&s) != want {
		t.Errorf("on again\ngot  %s\nwant %s", encode(&s), want)
	}
}

func TestDisabledFeatureWithoutSettingsLeavesTheDefaults(t *testing.T) {
	s, off := tableOf(t, pushrule.Features()...), tableOf(t)
	if s.MergeDefaults(off); encode(&s) != encode(&off) {
		t.Errorf("got %s", encode(&s))
	}
}

func TestUnreadableSettingsStayUnchanged(t *testing.T) {
	off := tableOf(t)
	for _, value := range []string{`7`, `{}`, `[{}]`, `[{"rule_id":".org.matrix.msc3930.rule.poll_end"}]`} {
		text := strings.TrimSuffix(encode(&off), "}") + `,"org.pushfx.features_off":` + value + `}`
		s := mustRead(t, text)
		if s.MergeDefaults(off); encode(&s) != text {
			t.Errorf("got  %s\nwant %s", encode(&s), text)
		}
		s.MergeDefaults(tableOf(t, pushrule.Polls))
		if rule, _ := s.Rule(pushrule.Underride, ".org.matrix.msc3930.rule.poll_end"); !rule.Enabled || len(rule.Actions) != 1 {
			t.Errorf("%s made %+v", value, rule)
		}
	}
}

// stablePolls is the feature after its proposal became part of the specification.
func stablePolls() pushrule.Feature {
	stable := pushrule.Feature{Name: "stable"}
	for _, rule := range pushrule.Polls.Rules {
		rule.ID = pushrule.Polls.StableIDs[rule.ID]
		stable.Rules = append(stable.Rules, rule)
	}
	return stable
}

func TestSettingsSurviveAChangeFromUnstableToStableIDs(t *testing.T) {
	unstable, stable, off := tableOf(t, pushrule.Polls), tableOf(t, stablePolls()), tableOf(t)
	chosen := setPolls(t, unstable)
	want := encode(&chosen)
	renamed := strings.ReplaceAll(want, ".org.matrix.msc3930.rule.", ".m.rule.")
	for name, tables := range map[string][]pushrule.Ruleset{
		"at once":                  {stable},
		"while the feature is off": {off, stable},
	} {
		t.Run(name, func(t *testing.T) {
			s := chosen
			for _, table := range tables {
				if s.IsCurrent(table) {
					t.Fatal("the set is current before the merge")
				}
				s.MergeDefaults(table)
			}
			if encode(&s) != renamed {
				t.Errorf("got  %s\nwant %s", encode(&s), renamed)
			}
			if s.HasForeign(stable) || s.HasForeign(unstable) || s.HasForeign(off) || len(s.FeaturesOff(off)) != 1 || len(s.FeaturesOff(stable)) != 0 {
				t.Error("a renamed rule counts as one that is in no table")
			}
			if s.MergeDefaults(unstable); encode(&s) != want {
				t.Errorf("back to the unstable ids: got %s", encode(&s))
			}
		})
	}
}

func TestImportTakesTheSettingsOfAFeatureUnderEitherID(t *testing.T) {
	unstable, stable, off := tableOf(t, pushrule.Polls), tableOf(t, stablePolls()), tableOf(t)
	set := setPolls(t, unstable)
	renamed := set
	renamed.MergeDefaults(stable)
	for name, test := range map[string]struct {
		from, table, want pushrule.Ruleset
		dropped           int
	}{
		"unstable to unstable": {set, unstable, set, 0},
		"unstable to stable":   {set, stable, renamed, 0},
		"stable to unstable":   {renamed, unstable, set, 0},
		"the feature is off":   {set, off, off, 5},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := pushrule.Import(`{"global":`+encode(&test.from)+`}`, test.table, pushrule.DefaultLimits())
			if err != nil || len(got.Refused) > 0 || len(got.Dropped) != test.dropped {
				t.Fatalf("got %+v, %v", got, err)
			}
			if _, found := got.Rules.Rule(pushrule.Room, "!room:hs"); !found {
				t.Error("the user's own rule is missing")
			}
			if err := got.Rules.Delete(pushrule.Room, "!room:hs"); err != nil {
				t.Fatal(err)
			}
			if _, found := test.want.Rule(pushrule.Room, "!room:hs"); found {
				if err := test.want.Delete(pushrule.Room, "!room:hs"); err != nil {
					t.Fatal(err)
				}
			}
			if encode(&got.Rules) != encode(&test.want) {
				t.Errorf("got  %s\nwant %s", encode(&got.Rules), encode(&test.want))
			}
		})
	}
}
