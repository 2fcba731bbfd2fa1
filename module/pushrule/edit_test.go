package pushrule_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

const storedSet = `{ "override": [
	{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]},
	{"rule_id":"A","default":false,"enabled":true,"conditions":[{"kind":"custom","n":1e400}],"actions":["notify"],"x":[0.10000000000000000001]},
	{"rule_id":"marked","default":true,"enabled":true,"actions":[]},
	{"rule_id":".not.marked","default":false,"enabled":true,"actions":[]} ],
 "room": [{"rule_id":"A","default":false,"enabled":true,"actions":[]}],
 "org.example.kind": {"a":9007199254740993} }`

func TestDeleteRemovesUserRulesOnly(t *testing.T) {
	for name, test := range map[string]struct {
		kind pushrule.Kind
		id   string
		want error
	}{
		"a user's rule":                           {pushrule.Override, "A", nil},
		"of another kind":                         {pushrule.Room, "A", nil},
		"a rule that is not there":                {pushrule.Sender, "A", pushrule.ErrRuleNotFound},
		"a default that is not there":             {pushrule.Override, ".m.rule.call", pushrule.ErrRuleNotFound},
		"a default":                               {pushrule.Override, ".m.rule.master", pushrule.ErrDeleteDefault},
		"a rule that is only marked as a default": {pushrule.Override, "marked", pushrule.ErrDeleteDefault},
		"a default that is not marked as one":     {pushrule.Override, ".not.marked", pushrule.ErrDeleteDefault},
		"an unknown kind":                         {"org.example.kind", "A", pushrule.ErrUnknownKind},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, storedSet)
			original := s
			err := s.Delete(test.kind, test.id)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if err != nil && encode(&s) != storedSet {
				t.Error("a refused deletion changed the set")
			}
			if _, found := s.Rule(test.kind, test.id); err == nil && found {
				t.Error("the rule is still there")
			}
			if err == nil && s.Len() != original.Len()-1 {
				t.Errorf("%d rules are left of %d", s.Len(), original.Len())
			}
			if encode(&original) != storedSet || original.Len() != 5 {
				t.Error("the copy taken before was changed")
			}
		})
	}
}

func TestDeleteRemovesEveryRuleOfAnID(t *testing.T) {
	s := setOf(t, pushrule.Room, "A B A A C")
	if err := s.Delete(pushrule.Room, "A"); err != nil || idsOf(&s, pushrule.Room) != "B C" {
		t.Errorf("got %s, %v", idsOf(&s, pushrule.Room), err)
	}
}

func TestDeletedRuleLosesItsSettings(t *testing.T) {
	s := setOf(t, pushrule.Room, "A")
	steps := []error{
		s.SetEnabled(pushrule.Room, "A", false),
		s.Delete(pushrule.Room, "A"),
		s.Put(pushrule.Room, "A", plain(), pushrule.Position{}),
	}
	if rule, _ := s.Rule(pushrule.Room, "A"); errors.Join(steps...) != nil || !rule.Enabled {
		t.Errorf("got %+v, %v", rule, steps)
	}
}

func TestSetEnabledAndSetActionsChangeOneFieldOfAnyRule(t *testing.T) {
	type edit = func(*pushrule.Ruleset, pushrule.Kind, string) error
	disable := func(s *pushrule.Ruleset, kind pushrule.Kind, id string) error { return s.SetEnabled(kind, id, false) }
	enable := func(s *pushrule.Ruleset, kind pushrule.Kind, id string) error { return s.SetEnabled(kind, id, true) }
	act := func(actions ...pushrule.Action) edit {
		return func(s *pushrule.Ruleset, kind pushrule.Kind, id string) error { return s.SetActions(kind, id, actions) }
	}
	for name, test := range map[string]struct {
		edit     edit
		kind     pushrule.Kind
		id       string
		old, new string // replaces a stored text
		want     error
	}{
		"disable a user's rule":  {disable, pushrule.Override, "A", `"A","default":false,"enabled":true,"c`, `"A","default":false,"enabled":false,"c`, nil},
		"enable a default":       {enable, pushrule.Override, ".m.rule.master", `"enabled":false`, `"enabled":true`, nil},
		"enable what is enabled": {enable, pushrule.Room, "A", ``, ``, nil},
		"actions of a rule":      {act(`"x"`, `{"n":1e400}`), pushrule.Override, "A", `"actions":["notify"]`, `"actions":["x",{"n":1e400}]`, nil},
		"no actions":             {act(), pushrule.Override, "A", `"actions":["notify"]`, `"actions":[]`, nil},
		"actions of a default":   {act(`"x"`), pushrule.Override, ".m.rule.master", `"conditions":[],"actions":[]`, `"conditions":[],"actions":["x"]`, nil},
		"disable a missing rule": {disable, pushrule.Sender, "A", ``, ``, pushrule.ErrRuleNotFound},
		"actions, missing rule":  {act(), pushrule.Sender, "A", ``, ``, pushrule.ErrRuleNotFound},
		"disable, unknown kind":  {disable, "x", "A", ``, ``, pushrule.ErrUnknownKind},
		"actions, unknown kind":  {act(), "", "A", ``, ``, pushrule.ErrUnknownKind},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, storedSet)
			original := s
			err := test.edit(&s, test.kind, test.id)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if err != nil && encode(&s) != storedSet {
				t.Error("a refused change changed the set")
			}
			want := strings.Replace(storedSet, test.old, test.new, 1)
			if !sameJSON(t, encode(&s), complete(t, want)) && err == nil {
				t.Errorf("got  %s\nwant %s", encode(&s), want)
			}
			if encode(&original) != storedSet || reencode(t, original) != reencode(t, mustRead(t, storedSet)) {
				t.Error("the copy taken before was changed")
			}
		})
	}
}

func TestSetActionsCopiesTheList(t *testing.T) {
	s := setOf(t, pushrule.Room, "A")
	actions := []pushrule.Action{`"notify"`}
	if err := s.SetActions(pushrule.Room, "A", actions); err != nil {
		t.Fatal(err)
	}
	actions[0] = `"changed"`
	if got, _ := s.Rule(pushrule.Room, "A"); got.Actions[0] != `"notify"` {
		t.Errorf("got %s", got.Actions)
	}
}

func TestAppendToListDoesNotChangeTheSet(t *testing.T) {
	s := setOf(t, pushrule.Room, "A B C")
	if err := s.Delete(pushrule.Room, "C"); err != nil { // leaves spare capacity
		t.Fatal(err)
	}
	a := append(s.List(pushrule.Room), pushrule.Rule{ID: "X"})
	b := append(s.List(pushrule.Room), pushrule.Rule{ID: "Y"})
	if a[2].ID != "X" || b[2].ID != "Y" || idsOf(&s, pushrule.Room) != "A B" {
		t.Error("two lists share memory")
	}
	if s.List("other") != nil {
		t.Error("an unknown kind has a list")
	}
}
