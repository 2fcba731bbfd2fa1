package pushrule_test

import (
	"errors"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

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

func TestChangesOfAnUnknownKindAreRefused(t *testing.T) {
	s := mustRead(t, storedSet)
	for _, err := range []error{s.SetEnabled("org.example.kind", "A", false), s.SetActions("", "A", nil)} {
		if !errors.Is(err, pushrule.ErrUnknownKind) || encode(&s) != storedSet {
			t.Errorf("got %v, %s", err, encode(&s))
		}
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
