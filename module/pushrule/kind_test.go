package pushrule_test

import (
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

func TestKindsHaveConditionsOrPattern(t *testing.T) {
	type traits struct{ valid, conditions, pattern bool }
	want := map[pushrule.Kind]traits{
		"override":  {true, true, false},
		"content":   {true, false, true},
		"room":      {true, false, false},
		"sender":    {true, false, false},
		"underride": {true, true, false},
		"":          {},
		"Override":  {},
		"overrid":   {},
		"global":    {},
	}
	for kind, want := range want {
		if got := (traits{kind.Valid(), kind.HasConditions(), kind.HasPattern()}); got != want {
			t.Errorf("%q: got %+v, want %+v", kind, got, want)
		}
	}
}

func TestKindsAreInOrderOfEvaluation(t *testing.T) {
	if want := [...]pushrule.Kind{"override", "content", "room", "sender", "underride"}; pushrule.Kinds() != want {
		t.Errorf("got %v, want %v", pushrule.Kinds(), want)
	}
}
