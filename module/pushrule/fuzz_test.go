package pushrule_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// equalRules treats an empty and an absent list of conditions as equal.
func equalRules(a, b pushrule.Rule) bool {
	if len(a.Conditions) == 0 && len(b.Conditions) == 0 {
		a.Conditions, b.Conditions = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

const storedSet = `{ "override": [
	{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]},
	{"rule_id":"A","default":false,"enabled":true,"conditions":[{"kind":"custom","n":1e400}],"actions":["notify"],"x":[0.10000000000000000001]},
	{"rule_id":"marked","default":true,"enabled":true,"actions":[]},
	{"rule_id":".not.marked","default":false,"enabled":true,"actions":[]} ],
 "room": [{"rule_id":"A","default":false,"enabled":true,"actions":[]}],
 "org.example.kind": {"a":9007199254740993} }`

// FuzzRead compares with encoding/json, and reads each changed set again.
func FuzzRead(f *testing.F) {
	defaults := pushrule.ServerDefault("@alice:example.org")
	f.Add(encode(&defaults))
	f.Add(storedSet)
	for _, text := range oddSets() {
		f.Add(text)
	}
	for _, rules := range roomSets {
		f.Add(rules)
	}
	for _, text := range []string{`null`, `{"room":[null]}`, `{"room":[{"rule_id":"\ud800"}]}`, `{"room":[],"room":[]}`, `{} {}`, `{"content":[{}]}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := pushrule.Read(text)
		if carefully := readCarefully(text); describe(err) != describe(carefully) {
			t.Fatalf("%q: error %v, and %v when each rule is read", text, err, carefully)
		}
		if err != nil {
			switch fault.KindOf(err) {
			case fault.NotJSON, fault.BadJSON, fault.MissingParam:
			default:
				t.Errorf("%q: %v of kind %v", text, err, fault.KindOf(err))
			}
			return
		}
		if got := encode(&s); got != strings.Trim(text, " \t\r\n") {
			t.Errorf("%q: returned as %q", text, got)
		}
		checkAgainstEncodingJSON(t, text, &s)
		if again := reencode(t, s); !sameJSON(t, again, complete(t, text)) {
			t.Errorf("%q: written anew as %s", text, again)
		}
		for name, change := range map[string]func(*pushrule.Ruleset) error{
			"put": func(s *pushrule.Ruleset) error {
				return s.Put(pushrule.Override, "\u2028\"", plain(), pushrule.Position{})
			},
			"merge": func(s *pushrule.Ruleset) error {
				s.MergeDefaults(pushrule.ServerDefault("@a\"}:b"))
				return nil
			},
			"copy": func(s *pushrule.Ruleset) error {
				_ = s.CopyRoomRules("!old:hs", "\u2028\"") // fails if an id of the set is invalid
				return nil
			},
		} {
			changed := s
			if err := change(&changed); err != nil {
				t.Fatalf("%q: %s: %v", text, name, err)
			}
			again, err := pushrule.Read(encode(&changed))
			if err != nil || reencode(t, again) != reencode(t, changed) {
				t.Errorf("%q: %s: read back with %v as %s, want %s", text, name, err, encode(&again), encode(&changed))
			}
		}
		if got := strings.TrimSpace(text); encode(&s) != strings.Trim(got, " \t\r\n") {
			t.Errorf("%q: a change to a copy changed the original", text)
		}
	})
}

func readCarefully(text string) error {
	_, err := pushrule.ReadRuleset(strictjson.NewReader(text))
	return err
}

func checkAgainstEncodingJSON(t *testing.T, text string, s *pushrule.Ruleset) {
	set, ok := decode(t, text).(map[string]any)
	if !ok || !json.Valid([]byte(text)) {
		t.Fatalf("%q: encoding/json sees no object", text)
	}
	for _, kind := range pushrule.Kinds() {
		theirs, _ := set[string(kind)].([]any)
		ours := s.List(kind)
		if len(ours) != len(theirs) {
			t.Fatalf("%q: %d rules of kind %s, want %d", text, len(ours), kind, len(theirs))
		}
		for i, rule := range ours {
			their := theirs[i].(map[string]any)
			pattern := any(rule.Pattern)
			if !kind.HasPattern() {
				pattern = their["pattern"]
			}
			got := fmt.Sprintf("%q %t %t %v %d", rule.ID, rule.Default, rule.Enabled, pattern, len(rule.Actions))
			want := fmt.Sprintf("%q %t %t %v %d", their["rule_id"], their["default"], their["enabled"], their["pattern"], len(their["actions"].([]any)))
			if got != want {
				t.Errorf("%q: %s rule %d: got %s, want %s", text, kind, i, got, want)
			}
		}
	}
}

// FuzzReadDraft checks that an accepted rule survives storing unchanged.
func FuzzReadDraft(f *testing.F) {
	for i, text := range []string{
		`{"actions":["notify",{"set_tweak":"sound","value":"x"}],"conditions":[{"kind":"x","n":1e400}],"x":{"y":[0.10]}}`,
		`{"actions":[],"pattern":"p","enabled":false}`, `{"actions":[],"conditions":null,"rule_id":7,"default":{}}`,
		`{"actions":[null]}`, `{"actions":[{"set_tweak":null}]}`, `{"actions":[],"enabled":1}`, `{}`, `{"actions":[],"\ud83d\ude00":"\\"}`,
	} {
		f.Add(uint8(i), text)
	}
	f.Fuzz(func(t *testing.T, n uint8, text string) {
		kind := edit{kind: n}.kindName()
		d, err := pushrule.ReadDraft(strictjson.NewReader(text), kind)
		if err != nil || strictjson.Depth(text) > 1000 {
			return
		}
		s := pushrule.ServerDefault(modelUser)
		if err := s.Put(kind, "id", d, pushrule.Position{}); err != nil {
			t.Fatalf("%q: accepted, but not put: %v", text, err)
		}
		again, err := pushrule.Read(encode(&s))
		if err != nil {
			t.Fatalf("%q: accepted, but not readable: %v", text, err)
		}
		rule, _ := again.Rule(kind, "id")
		got := decode(t, string(rule.AppendJSON(nil, kind))).(map[string]any)
		want := decode(t, text).(map[string]any)
		want["rule_id"], want["default"] = "id", false
		if want["enabled"] == nil {
			want["enabled"] = true
		}
		if !kind.HasPattern() {
			delete(want, "pattern")
		}
		if !kind.HasConditions() {
			delete(want, "conditions")
		} else if want["conditions"] == nil {
			want["conditions"] = []any{}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: read back as %v, want %v", text, got, want)
		}
	})
}
