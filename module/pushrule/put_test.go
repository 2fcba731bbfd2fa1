package pushrule_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

// The tables show the list A B C after a put: a row for each after, a column for each
// before, - for none. X does not exist; .d is a server-default rule.
const (
	putNew = `
		.    -        A        B        C        N        .d
		-    NABC     NABC     ANBC     ABNC     missing  default
		A    ANBC     order    ANBC     ABNC     missing  default
		B    ABNC     order    order    ABNC     missing  default
		C    ABCN     order    order    order    missing  default
		N    missing  missing  missing  missing  missing  default
		.d   default  default  default  default  default  default`
	putFirst = `
		.    -        A        B        C        X        .d
		-    ABC      ABC      ABC      BAC      missing  default
		A    ABC      order    ABC      BAC      missing  default
		B    BAC      order    order    BAC      missing  default
		C    BCA      order    order    order    missing  default
		X    missing  missing  missing  missing  missing  default
		.d   default  default  default  default  default  default`
	putMiddle = `
		.    -        A        B        C        X        .d
		-    ABC      BAC      ABC      ABC      missing  default
		A    ABC      order    ABC      ABC      missing  default
		B    ABC      order    order    ABC      missing  default
		C    ACB      order    order    order    missing  default
		X    missing  missing  missing  missing  missing  default
		.d   default  default  default  default  default  default`
	putLast = `
		.    -        A        B        C        X        .d
		-    ABC      CAB      ACB      ABC      missing  default
		A    ACB      order    ACB      ABC      missing  default
		B    ABC      order    order    ABC      missing  default
		C    ABC      order    order    order    missing  default
		X    missing  missing  missing  missing  missing  default
		.d   default  default  default  default  default  default`
)

func TestPutPlacesRules(t *testing.T) {
	refusals := map[string]error{
		"missing": pushrule.ErrAnchorNotFound,
		"default": pushrule.ErrAnchorIsDefault,
		"order":   pushrule.ErrAnchorOrder,
	}
	around := map[pushrule.Kind][2]string{ // the defaults above and below the user's rules
		pushrule.Override:  {".m.rule.master ", " .d .m.rule.suppress_notices"},
		pushrule.Content:   {"", " .d"},
		pushrule.Room:      {"", ""},
		pushrule.Sender:    {"", ""},
		pushrule.Underride: {"", " .d .m.rule.message"},
	}
	for id, table := range map[string]string{"N": putNew, "A": putFirst, "B": putMiddle, "C": putLast} {
		lines := strings.Split(strings.TrimSpace(table), "\n")
		befores := strings.Fields(lines[0])[1:]
		for _, line := range lines[1:] {
			cells := strings.Fields(line)
			for i, want := range cells[1:] {
				before, after := given(befores[i]), given(cells[0])
				t.Run("PUT "+id+" before="+before+" after="+after, func(t *testing.T) {
					for kind, defaults := range around {
						s := setOf(t, kind, defaults[0]+"A B C"+defaults[1])
						stored := encode(&s)
						err := s.Put(kind, id, plain(), pushrule.Position{Before: before, After: after})
						if !errors.Is(err, refusals[want]) {
							t.Fatalf("%s: got %v, want %s", kind, err, want)
						}
						if err != nil {
							if encode(&s) != stored {
								t.Errorf("%s: a refused put changed the set", kind)
							}
							continue
						}
						ids := defaults[0] + strings.Join(strings.Split(want, ""), " ") + defaults[1]
						if got := idsOf(&s, kind); got != ids {
							t.Errorf("%s\ngot  %s\nwant %s", kind, got, ids)
						}
					}
				})
			}
		}
	}
}

func given(cell string) string {
	if cell == "-" {
		return ""
	}
	return cell
}

func TestPutReturnsTheFirstErrorInOrder(t *testing.T) {
	const missing = "missing"
	position := func(before, after string) pushrule.Position {
		return pushrule.Position{Before: before, After: after}
	}
	noPattern := pushrule.Draft{Actions: []pushrule.Action{}}
	for name, test := range map[string]struct {
		kind  pushrule.Kind
		id    string
		draft pushrule.Draft
		at    pushrule.Position
		want  error
	}{
		"unknown kind before all":        {"other", ".a/", noPattern, position(".d", missing), pushrule.ErrUnknownKind},
		"kinds are matched exactly":      {"Content", "ok", plain(), position("", ""), pushrule.ErrUnknownKind},
		"reserved before invalid":        {pushrule.Content, ".a/", noPattern, position(".d", missing), pushrule.ErrReservedID},
		"invalid before the pattern":     {pushrule.Content, "a/", noPattern, position(".d", missing), pushrule.ErrInvalidID},
		"an empty id is invalid":         {pushrule.Content, "", plain(), position("", ""), pushrule.ErrInvalidID},
		"pattern before the anchors":     {pushrule.Content, "ok", noPattern, position(".d", missing), pushrule.ErrInvalidData},
		"default before a missing after": {pushrule.Content, "ok", plain(), position(".d", missing), pushrule.ErrAnchorIsDefault},
		"default after a missing before": {pushrule.Content, "ok", plain(), position(missing, ".d"), pushrule.ErrAnchorIsDefault},
		"default that does not exist":    {pushrule.Content, "ok", plain(), position("", ".nowhere"), pushrule.ErrAnchorIsDefault},
		"master as anchor":               {pushrule.Override, "ok", plain(), position("", ".m.rule.master"), pushrule.ErrAnchorIsDefault},
		"missing before the order":       {pushrule.Content, "ok", plain(), position("A", missing), pushrule.ErrAnchorNotFound},
		"the order comes last":           {pushrule.Content, "ok", plain(), position("A", "B"), pushrule.ErrAnchorOrder},
		"one rule as both":               {pushrule.Content, "ok", plain(), position("A", "A"), pushrule.ErrAnchorOrder},
		"a new rule as both its anchors": {pushrule.Content, "ok", plain(), position("ok", "ok"), pushrule.ErrAnchorNotFound},
		"a rule that is only marked":     {pushrule.Content, "ok", plain(), position("marked", "marked"), pushrule.ErrAnchorOrder},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, `{"content":[
				{"rule_id":"A","default":false,"enabled":true,"pattern":"a","actions":[]},
				{"rule_id":"B","default":false,"enabled":true,"pattern":"b","actions":[]},
				{"rule_id":".d","default":true,"enabled":true,"pattern":"d","actions":[]},
				{"rule_id":"marked","default":true,"enabled":true,"pattern":"d","actions":[]}]}`)
			stored := encode(&s)
			if err := s.Put(test.kind, test.id, test.draft, test.at); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if encode(&s) != stored {
				t.Error("a refused put changed the set")
			}
		})
	}
}

func TestPutRepairsADamagedSet(t *testing.T) {
	at := func(before, after string) pushrule.Position { return pushrule.Position{Before: before, After: after} }
	for name, test := range map[string]struct {
		stored string
		id     string
		at     pushrule.Position
		want   string
	}{
		"master is not first":                     {"A .m.rule.master B .d", "N", at("", ""), ".m.rule.master N A B .d"},
		"master is last":                          {"A B .m.rule.master", "N", at("A", ""), ".m.rule.master N A B"},
		"master is below the rule that is put":    {"A .m.rule.master B", "A", at("", ""), ".m.rule.master A B"},
		"before a rule that stands above master":  {"A .m.rule.master B", "B", at("A", ""), ".m.rule.master B A"},
		"master stands between the anchors":       {"A .m.rule.master B", "N", at("B", "A"), ".m.rule.master A N B"},
		"no master":                               {"A .d", "N", at("", ""), "N A .d"},
		"defaults above the user's rules":         {".m.rule.master .d A", "N", at("", ""), ".m.rule.master N .d A"},
		"the rule is there twice, placed":         {"A B A C", "A", at("", "C"), "B C A"},
		"the rule is there twice, in place":       {"A B A C", "A", at("", ""), "A B C"},
		"the rule is there twice, beside itself":  {"B A A C", "A", at("A", ""), "B A C"},
		"the rule is there thrice, before itself": {"A A B A", "A", at("B", ""), "A B"},
		"an anchor is there twice":                {"A B B C", "N", at("", "B"), "A B N B C"},
	} {
		t.Run(name, func(t *testing.T) {
			s := setOf(t, pushrule.Override, test.stored)
			original, stored := s, encode(&s)
			if err := s.Put(pushrule.Override, test.id, plain(), test.at); err != nil {
				t.Fatal(err)
			}
			if got := idsOf(&s, pushrule.Override); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if encode(&original) != stored || idsOf(&original, pushrule.Override) != test.stored {
				t.Error("the copy taken before was changed")
			}
		})
	}
}

func TestRefusedPutDoesNotRepairADamagedSet(t *testing.T) {
	s := setOf(t, pushrule.Override, "A .m.rule.master A")
	stored := encode(&s)
	if err := s.Put(pushrule.Override, "N", plain(), pushrule.Position{After: "X"}); !errors.Is(err, pushrule.ErrAnchorNotFound) {
		t.Errorf("got %v", err)
	}
	if encode(&s) != stored {
		t.Error("the set was changed")
	}
}
