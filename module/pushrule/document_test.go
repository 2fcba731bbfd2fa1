package pushrule

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
)

func withRules(kind Kind, rules ...string) string {
	return strings.Replace(emptySet, `"`+string(kind)+`":[`, `"`+string(kind)+`":[`+strings.Join(rules, ","), 1)
}

const rest = `"default":false,"enabled":true,"actions":[]`

func TestOnlyTextOfTheServiceIsCanonical(t *testing.T) {
	t.Parallel()
	defaults := ServerDefault(mxid.UserID("@alice:example.org"))
	for name, test := range map[string]struct {
		text string
		want bool
	}{
		"empty":                    {emptySet, true},
		"defaults":                 {defaults.JSON(), true},
		"a rule":                   {withRules(Room, `{"rule_id":"a",`+rest+`}`), true},
		"two rules":                {withRules(Room, `{"rule_id":"a",`+rest+`}`, `{"rule_id":"a",`+rest+`}`), true},
		"an extra member":          {strings.TrimSuffix(emptySet, "}") + `,"x": {"y" : 1}}`, false},
		"an extra member, written": {strings.TrimSuffix(emptySet, "}") + `,"x":{"y" : 1}}`, true},
		"an escape in a string":    {withRules(Room, `{"rule_id":"a",`+rest+`,"x":"{\"rule_id\":\"b\",\"sender\":[{"}`), true},
		"a quote in an id":         {withRules(Room, `{"rule_id":"\"",`+rest+`}`), true},
		"rule_id as a value":       {withRules(Room, `{"rule_id":"a",`+rest+`,"x":"rule_id"}`), true},
		"rule_id as an id":         {withRules(Room, `{"rule_id":"rule_id",`+rest+`}`), true},
		"an escape in an id":       {withRules(Room, `{"rule_id":"\u0061",`+rest+`}`), false},
		"an escaped slash":         {withRules(Room, `{"rule_id":"a\/b",`+rest+`}`), false},
		"the id not first":         {withRules(Room, `{`+rest+`,"rule_id":"a"}`), false},
		"another order":            {withRules(Room, `{"rule_id":"a","enabled":true,"default":false,"actions":[]}`), false},
		"an escaped rule_id":       {withRules(Room, `{"rule_i\u0064":"a",`+rest+`}`), false},
		"a space":                  {withRules(Room, `{"rule_id": "a",`+rest+`}`), false},
		"a space between rules":    {withRules(Room, `{"rule_id":"a",`+rest+`}`, ` {"rule_id":"b",`+rest+`}`), false},
		"a rule in a rule":         {withRules(Room, `{"rule_id":"a",`+rest+`,"x":{"rule_id":"b"}}`), false},
		"a rule in an action":      {withRules(Room, `{"rule_id":"a","default":false,"enabled":true,"actions":[{"rule_id":"b"}]}`), false},
		"a rule in an extra kind":  {strings.Replace(emptySet, "}", `,"x":[{"rule_id":"a"}]}`, 1), false},
		"a list in a rule":         {withRules(Room, `{"rule_id":"a",`+rest+`,"sender":[]}`), false},
		"a list in the set":        {strings.Replace(emptySet, "}", `,"x":{"room":[]}}`, 1), false},
		"no conditions":            {withRules(Override, `{"rule_id":"a",`+rest+`}`), false},
		"a space in the set":       {strings.Replace(emptySet, `"room":`, `"room": `, 1), false},
		"an escaped kind":          {strings.Replace(emptySet, `"room"`, `"\u0072oom"`, 1), false},
		"a list is missing":        {`{"override":[],"content":[],"room":[],"sender":[]}`, false},
		"kinds in another order":   {`{"content":[],"override":[],"room":[],"sender":[],"underride":[]}`, false},
	} {
		s, err := Read(test.text)
		if err != nil || s.doc.canonical != test.want {
			t.Errorf("%s: canonical is %t, %v", name, s.doc.canonical, err)
		}
	}
}

// Other writers may have stored these sets.
func TestRulesAreFoundInMisleadingText(t *testing.T) {
	t.Parallel()
	const mine = `{"rule_id":"b","default":false,"enabled":true,"actions":[]}`
	for name, text := range map[string]string{
		"an escaped kind":    `{"override":[],"content":[],"\u0072oom":[` + mine + `],"sender":[],"underride":[],"x":{"room":[{"a":1}]}}`,
		"an escaped rule_id": withRules(Room, `{"rule\u005fid":"b","default":false,"enabled":true,"actions":[]}`),
		"an escaped rule_id, another in a condition": strings.Replace(
			withRules(Room, `{"rule\u005fid":"b","default":false,"enabled":true,"actions":[]}`), `"override":[`,
			`"override":[{"rule_id":"o","default":false,"enabled":true,"conditions":[{"rule_id":"b"}],"actions":[]}`, 1),
		"a rule in an action above":  withRules(Room, `{"rule_id":"a","default":false,"enabled":true,"actions":[`+mine+`]}`, mine),
		"a rule in an extra above":   withRules(Room, `{"rule_id":"a",`+rest+`,"x":[`+mine+`]}`, mine),
		"a list in an action above":  withRules(Room, `{"rule_id":"a","default":false,"enabled":true,"actions":[{"room":[`+mine+`]}]}`, mine),
		"the next kind in an action": withRules(Room, `{"rule_id":"a","default":false,"enabled":true,"actions":[{"sender":[]}]}`, mine),
	} {
		s, err := Read(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		before := s.Len()
		if rule, found := s.Rule(Room, "b"); !found || rule.ID != "b" || len(rule.Actions) > 0 {
			t.Errorf("%s: got %+v, %t", name, rule, found)
		}
		steps := []error{
			s.Put(Room, "c", Draft{Actions: []Action{`"c"`}}, Position{}),
			s.SetActions(Room, "b", []Action{`"x"`}),
			s.Put(Room, "d", Draft{}, Position{After: "b"}),
			s.SetEnabled(Room, "b", false),
			s.Delete(Room, "d"),
		}
		for i, err := range steps {
			if err != nil {
				t.Errorf("%s: step %d: %v", name, i, err)
			}
		}
		again, err := Read(s.JSON())
		if err != nil || again.Len() != before+1 || again.List(Room)[0].ID != "c" {
			t.Errorf("%s: is now %s, %v", name, s.JSON(), err)
		}
		if rule, _ := again.Rule(Room, "b"); rule.Enabled || len(rule.Actions) != 1 || rule.Actions[0] != `"x"` {
			t.Errorf("%s: is now %s", name, s.JSON())
		}
	}
}

// In a canonical set, a byte search must find the same rules as parsing.
func TestSearchFindsTheParsedRules(t *testing.T) {
	t.Parallel()
	ids := []string{"a", "ab", "é🙂", "rule_id", `"`, `\`, "room", `room":[`, `{"rule_id":"a`, "b", "\u0000"}
	texts := []string{
		`"notify"`, `{"rule_id":"a"}`, `{"x":[{"rule_id":"ab"}]}`, `{"sender":[{"rule_id":"b"}]}`, `{ "rule_id" : "a" }`,
		`"{\"rule_id\":\"a\""`, `{"room":[]}`, `{"underride" :[]}`, `"room"`, `{"y":"\u0022room\u0022:["}`,
	}
	kinds := Kinds()
	CheckDrawn(t, func(d Draws) {
		id, text := func() string { return DrawOne(d, ids...) }, func() string { return DrawOne(d, texts...) }
		s := DrawOne(d, Ruleset{}, ServerDefault("@a:b"))
		for range 1 + d.IntN(12) {
			kind, name, action := kinds[d.IntN(len(kinds))], id(), Action(text())
			switch d.IntN(6) {
			case 0, 1:
				draft := Draft{Actions: []Action{action}, Pattern: text(), Extra: []Member{{Name: text(), Value: text()}}}
				_ = s.Put(kind, name, draft, Position{After: DrawOne(d, append(ids, "", "", "")...)})
			case 2:
				_ = s.SetActions(kind, name, []Action{action})
			case 3:
				_ = s.Delete(kind, name)
			case 4:
				_ = s.CopyRoomRules(name, id())
			case 5:
				s.MergeDefaults(ServerDefault("@a:b"))
			}
			checkDocument(t, s.doc, ids)
		}
	})
}

func checkDocument(t *testing.T, d document, ids []string) {
	t.Helper()
	again, err := Read((&Ruleset{d}).JSON())
	if err != nil {
		t.Fatalf("%s: %v", d.text, err)
	}
	if d.canonical && !again.doc.canonical {
		t.Fatalf("taken for canonical: %s", d.text)
	}
	walked := d
	walked.canonical = false
	if d.len() != walked.len() {
		t.Fatalf("%d rules, %d on a walk, in %s", d.len(), walked.len(), d.text)
	}
	for _, kind := range append(ids[:0:0], "override", "content", "room", "sender", "underride", "unknown") {
		for _, id := range append(ids, ".m.rule.master", ".m.rule.call", "\xff") {
			at, e, found := d.find(Kind(kind), id)
			wantAt, want, wantFound := walked.find(Kind(kind), id)
			if at != wantAt || e != want || found != wantFound {
				t.Fatalf("%s %q in %s\ngot  %v %v %t\nwant %v %v %t", kind, id, d.text, at, e, found, wantAt, want, wantFound)
			}
		}
	}
}

func FuzzFromCanonical(f *testing.F) {
	defaults := ServerDefault("@alice:example.org")
	f.Add(defaults.JSON())
	for _, text := range []string{"", "{", `"room":[`, `"room":[{"rule_id":"a"`, `{"rule_id":"a","sender":[`, `"override":[{"rule_id":".m.rule.master","actions`, `"underride":[],"room":[{`} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		for _, kind := range Kinds() {
			s := FromCanonical(text)
			s.Len()
			s.List(kind)
			s.Rule(kind, "a")
			table := ServerDefault("@alice:example.org")
			s.Problems(table)
			s.IsCurrent(table)
			draft := Draft{Actions: []Action{`"notify"`}, Pattern: "p"}
			for _, change := range []func() error{
				func() error { return s.Put(kind, "a", draft, Position{}) },
				func() error { return s.Put(kind, "b", draft, Position{After: "a"}) },
				func() error { return s.SetEnabled(kind, "a", false) },
				func() error { return s.SetActions(kind, "b", nil) },
				func() error { return s.Delete(kind, "a") },
				func() error { return s.CopyRoomRules("a", "b") },
			} {
				_ = change()
			}
			s.MergeDefaults(table)
			_ = s.Repair(table)
		}
	})
}
