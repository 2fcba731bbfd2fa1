package pushrule

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
)

// withRules is a set with rules in one list.
func withRules(kind Kind, rules ...string) string {
	return strings.Replace(emptySet, `"`+string(kind)+`":[`, `"`+string(kind)+`":[`+strings.Join(rules, ","), 1)
}

const rest = `"default":false,"enabled":true,"actions":[]`

func TestPlainSets(t *testing.T) {
	t.Parallel()
	defaults := ServerDefault(mxid.UserID("@alice:example.org"))
	for name, test := range map[string]struct {
		text  string
		plain bool
	}{
		"empty":                  {emptySet, true},
		"defaults":               {defaults.JSON(), true},
		"a rule":                 {withRules(Room, `{"rule_id":"a",`+rest+`}`), true},
		"an escape in a string":  {withRules(Room, `{"rule_id":"a","x":"\"rule_id\":\"b\",\"sender\":[{",`+rest+`}`), true},
		"an escape in an id":     {withRules(Room, `{"rule_id":"\u0061",`+rest+`}`), false},
		"a quote in an id":       {withRules(Room, `{"rule_id":"\"",`+rest+`}`), false},
		"the id not first":       {withRules(Room, `{`+rest+`,"rule_id":"a"}`), false},
		"an escaped rule_id":     {withRules(Room, `{"rule_i\u0064":"a",`+rest+`}`), false},
		"a space":                {withRules(Room, `{"rule_id": "a",`+rest+`}`), false},
		"a rule in a rule":       {withRules(Room, `{"rule_id":"a","x":{"rule_id":"b"},`+rest+`}`), false},
		"rule_id as a value":     {withRules(Room, `{"rule_id":"a","x":"rule_id",`+rest+`}`), false},
		"rule_id behind a quote": {withRules(Room, `{"rule_id":"a","x":"\"rule_id",`+rest+`}`), false},
		"a list in a rule":       {withRules(Room, `{"rule_id":"a","sender":[],`+rest+`}`), false},
		"a list in the set":      {strings.Replace(emptySet, "}", `,"x":{"room":[]}}`, 1), false},
		"a space in the set":     {strings.Replace(emptySet, `"room":`, `"room": `, 1), false},
		"a list is missing":      {`{"override":[],"content":[],"room":[],"sender":[]}`, false},
		"another order":          {`{"content":[],"override":[],"room":[],"sender":[],"underride":[]}`, false},
	} {
		for way, read := range map[string]func(string) (Ruleset, error){"read": Read, "known": NewKnown().Read} {
			s, err := read(test.text)
			if err != nil || s.plain != test.plain {
				t.Errorf("%s, %s: plain is %t, %v", name, way, s.plain, err)
			}
		}
	}
}

func TestAPlainSetHasTheSameRulesAsAnyOther(t *testing.T) {
	t.Parallel()
	plain, err := Read(withRules(Room, `{"rule_id":"a",`+rest+`}`, `{"rule_id":"ab","x":[{"y":"\"}"}],`+rest+`}`, `{"rule_id":"é🙂",`+rest+`}`))
	if err != nil || !plain.plain {
		t.Fatal(plain.plain, err)
	}
	slow := plain
	slow.plain = false
	for _, kind := range []Kind{Override, Content, Room, Sender, Underride, "unknown"} {
		for _, id := range []string{"a", "ab", "é🙂", "b", "", `"`, `a","default":false`, ".m.rule.master", "\u0000"} {
			at, e, found := plain.find(kind, id)
			wantAt, want, wantFound := slow.find(kind, id)
			if at != wantAt || e != want || found != wantFound {
				t.Errorf("%s %q: got %v %v %t, want %v %v %t", kind, id, at, e, found, wantAt, want, wantFound)
			}
		}
	}
}
