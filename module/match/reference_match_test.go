package match_test

import (
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
)

func readSet(t testing.TB, text string) pushrule.Ruleset {
	t.Helper()
	set, err := pushrule.Read(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return set
}

func readEvent(t testing.TB, text string) *match.Event {
	t.Helper()
	event, err := match.ReadEvent(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return event
}

func TestRulesAgreeWithTheReference(t *testing.T) {
	t.Parallel()
	seeds, least := uint64(1000), 30
	if testing.Short() {
		seeds, least = seeds/10, least/10
	}
	found := map[pushrule.Kind]int{}
	for seed := range seeds {
		g := newGenerator(seed)
		set := encode(g.set())
		rules := match.Compile(readSet(t, set))
		for range 5 {
			event, facts := encode(g.event()), g.facts()
			wantKind, wantID := referenceRule(set, event, facts)
			kind, id := rules.Evaluate(readEvent(t, event), facts).Rule()
			if kind != wantKind || id != wantID {
				t.Fatalf("seed %d: got %s %s, want %s %s\nset %s\nevent %s\nfacts %+v", seed, kind, id, wantKind, wantID, set, event, facts)
			}
			found[kind]++
		}
	}
	kinds := pushrule.Kinds()
	for _, kind := range append(kinds[:], "") {
		if found[kind] < least {
			t.Errorf("only %d events matched a rule of kind %q", found[kind], kind)
		}
	}
	t.Log(found)
}
