package pushrule_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

func mustRead(t testing.TB, text string) pushrule.Ruleset {
	t.Helper()
	s, err := pushrule.Read(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func mustDraft(t testing.TB, kind pushrule.Kind, text string) pushrule.Draft {
	t.Helper()
	d, err := pushrule.ReadDraft(strictjson.NewReader(text), kind)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return d
}

func plain() pushrule.Draft {
	return pushrule.Draft{Actions: []pushrule.Action{`"notify"`}, Pattern: "word"}
}

// setOf makes rules of one kind from ids such as "A .m.rule.x"; a dot marks a default.
func setOf(t testing.TB, kind pushrule.Kind, ids string) pushrule.Ruleset {
	t.Helper()
	var rules []string
	for _, id := range strings.Fields(ids) {
		rule := pushrule.Rule{ID: id, Default: id[0] == '.', Enabled: true, Pattern: "word"}
		rules = append(rules, string(rule.AppendJSON(nil, kind)))
	}
	return mustRead(t, `{"`+string(kind)+`":[`+strings.Join(rules, ",")+`]}`)
}

func idsOf(s *pushrule.Ruleset, kind pushrule.Kind) string {
	var ids []string
	for _, rule := range s.List(kind) {
		ids = append(ids, rule.ID)
	}
	return strings.Join(ids, " ")
}

func encode(s *pushrule.Ruleset) string { return string(s.AppendJSON(nil)) }

// reencode returns the set's JSON after a change without effect.
func reencode(t testing.TB, s pushrule.Ruleset) string {
	t.Helper()
	for _, kind := range pushrule.Kinds() {
		if list := s.List(kind); len(list) > 0 {
			if err := s.SetEnabled(kind, list[0].ID, list[0].Enabled); err != nil {
				t.Fatal(err)
			}
			return encode(&s)
		}
	}
	if err := s.Put(pushrule.Room, "!tmp", plain(), pushrule.Position{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(pushrule.Room, "!tmp"); err != nil {
		t.Fatal(err)
	}
	return encode(&s)
}

func decode(t testing.TB, text string) any {
	t.Helper()
	var value any
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

func sameJSON(t testing.TB, a, b string) bool {
	t.Helper()
	return reflect.DeepEqual(decode(t, a), decode(t, b))
}

func describe(err error) string {
	if err == nil {
		return ""
	}
	return string(fault.KindOf(err)) + ": " + err.Error()
}

// complete adds the kinds and conditions that a stored set may omit.
func complete(t testing.TB, text string) string {
	t.Helper()
	set := decode(t, text).(map[string]any)
	for _, kind := range pushrule.Kinds() {
		list, _ := set[string(kind)].([]any)
		if list == nil {
			list = []any{}
		}
		set[string(kind)] = list
		for _, rule := range list {
			if members := rule.(map[string]any); kind.HasConditions() && members["conditions"] == nil {
				members["conditions"] = []any{}
			}
		}
	}
	completed, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(completed)
}
