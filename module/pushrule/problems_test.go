package pushrule_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

const problemsUser = "@alice:example.org"

func damaged(t *testing.T, old, with string) pushrule.Ruleset {
	t.Helper()
	set := pushrule.ServerDefault(problemsUser)
	text := strings.Replace(set.JSON(), old, with, 1)
	if text == set.JSON() {
		t.Fatalf("%q is not in the default set", old)
	}
	damaged, err := pushrule.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	return damaged
}

func TestProblemsAreFoundAndRepaired(t *testing.T) {
	t.Parallel()
	const (
		room    = `{"rule_id":"!r:x","default":false,"enabled":true,"actions":[]}`
		loud    = `{"rule_id":"!r:x","default":false,"enabled":true,"actions":["notify"]}`
		legacy  = `{"rule_id":".m.rule.contains_user_name","default":true,"enabled":true,"pattern":"alice","actions":["notify"]}`
		poll    = `{"rule_id":".m.rule.poll_start","default":true,"enabled":false,"conditions":[],"actions":["notify"]}`
		foreign = `{"rule_id":".org.example.poll","default":true,"enabled":false,"conditions":[],"actions":["notify"]}`
		mine    = `{"rule_id":"mine","default":false,"enabled":true,"conditions":[],"actions":[]}`
		master  = `{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]}`
	)
	type problems = []pushrule.Problem
	for _, test := range []struct {
		name, old, with string
		want            problems
		err             error
	}{
		{"as it should be", `"room":[]`, `"room":[` + room + `]`, nil, nil},
		{"duplicates", `"room":[]`, `"room":[` + room + `,` + room + `]`, problems{pushrule.DuplicateRules}, nil},
		{"duplicates that differ", `"room":[]`, `"room":[` + room + `,` + loud + `]`, problems{pushrule.DuplicateRules}, pushrule.ErrDuplicatesDiffer},
		{"one id in two kinds", `"room":[],"sender":[]`, `"room":[` + room + `],"sender":[` + room + `]`, nil, nil},
		{"a rule above the master rule", `"override":[`, `"override":[` + mine + `,`, problems{pushrule.MasterNotFirst}, nil},
		{"the master rule twice", `"override":[`, `"override":[` + master + `,`, problems{pushrule.DuplicateRules}, nil},
		{"no master rule", `"override":[` + master + `,`, `"override":[`, problems{pushrule.StaleDefaults}, nil},
		{"a legacy rule", `"content":[]`, `"content":[` + legacy + `]`, problems{pushrule.LegacyRule}, nil},
		{"another host's rule", `"underride":[`, `"underride":[` + foreign + `,`, problems{pushrule.ForeignDefault}, pushrule.ErrForeignDefault},
		{"a rule of a feature", `"underride":[`, `"underride":[` + poll + `,`, problems{pushrule.FeatureOff}, pushrule.ErrFeatureOff},
		{"a rule of a feature and another host's", `"underride":[`, `"underride":[` + poll + `,` + foreign + `,`,
			problems{pushrule.ForeignDefault, pushrule.FeatureOff}, pushrule.ErrForeignDefault},
		{"a rule of a feature in another kind", `"override":[`, `"override":[` + poll + `,`,
			problems{pushrule.MasterNotFirst, pushrule.ForeignDefault}, pushrule.ErrForeignDefault},
		{"an old definition", `"m.room.tombstone"`, `"m.room.grave"`, problems{pushrule.StaleDefaults}, nil},
		{"a user's rule below a default one", `"underride":[{"rule_id":".m.rule.call"`,
			`"underride":[{"rule_id":".m.rule.call","default":true,"enabled":true,"conditions":[],"actions":[]},` + mine + `,{"rule_id":".m.rule.call"`,
			problems{pushrule.DuplicateRules, pushrule.StaleDefaults}, pushrule.ErrDuplicatesDiffer},
		{"what the user chose of a default rule", `"rule_id":".m.rule.message","default":true,"enabled":true`,
			`"rule_id":".m.rule.message","default":true,"enabled":false`, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			table := pushrule.ServerDefault(problemsUser)
			set := damaged(t, test.old, test.with)
			before := set
			if got := set.Problems(table); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if foreign := slices.Contains(test.want, pushrule.ForeignDefault); set.HasForeign(table) != foreign {
				t.Errorf("HasForeign is %t", !foreign)
			}
			if err := set.Repair(table); !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			switch {
			case test.err != nil || test.want == nil:
				if !set.Equal(before) {
					t.Errorf("it is now %s", set.JSON())
				}
			default:
				if got := set.Problems(table); got != nil {
					t.Errorf("repaired, it has %q", got)
				}
			}
		})
	}
}
