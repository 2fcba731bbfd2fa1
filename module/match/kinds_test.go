package match_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// A kind of condition is more than its case in conditions.go: each test names what is missing
// for a kind.

func TestTheReferenceHasEachKindOfCondition(t *testing.T) {
	t.Parallel()
	if got, want := slices.Sorted(maps.Keys(referenceConditions)), match.ConditionKinds(); !slices.Equal(got, want) {
		t.Errorf("reference_test.go has %q, conditions.go has %q", got, want)
	}
}

// A submitted condition that lacks a member which its kind needs is refused. Conditions are
// drawn complete, and then lose one member.
func TestEachKindOfConditionIsDrawnAndItsMembersAreRequired(t *testing.T) {
	t.Parallel()
	drawn, lax := map[string]bool{}, map[string]bool{}
	for seed := range uint64(2000) {
		c := newGenerator(seed).condition()
		if text := encode(c); !match.MayMatch(pushrule.Condition(text)) || put(text) != nil {
			continue
		}
		kind := c["kind"].(string)
		drawn[kind] = true
		for name := range c {
			less := maps.Clone(c)
			delete(less, name)
			if text := encode(less); !match.MayMatch(pushrule.Condition(text)) && fault.KindOf(put(text)) != fault.MissingParam {
				lax[kind+" without "+name] = true
			}
		}
	}
	for _, kind := range match.ConditionKinds() {
		if !drawn[kind] {
			t.Errorf("generate_test.go draws no complete condition of kind %q", kind)
		}
	}
	for condition := range lax {
		t.Errorf("pushrule/condition.go accepts %s, which can never match", condition)
	}
}

// put returns the error of a client's rule with a condition.
func put(condition string) error {
	_, err := pushrule.ReadDraft(strictjson.NewReader(`{"actions":[],"conditions":[`+condition+`]}`), pushrule.Override)
	return err
}

func TestEachKindOfConditionIsExplainedAndOnThePage(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/explain_*.txt")
	if err != nil {
		t.Fatal(err)
	}
	explanations := ""
	for _, file := range files {
		explanations += readFile(t, file)
	}
	page := readFile(t, "README.md")
	for _, kind := range match.ConditionKinds() {
		if !strings.Contains(explanations, `not {"kind":"`+kind+`"`) {
			t.Errorf("no case of TestExplanations has a condition of kind %q that fails", kind)
		}
		if !strings.Contains(page, "`"+kind+"`") {
			t.Errorf("README.md has no kind %q", kind)
		}
	}
}
