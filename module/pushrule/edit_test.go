package pushrule_test

import (
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

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
