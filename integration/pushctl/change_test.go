package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

func TestRefreshDefaults(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob, carol)
	want, version := b.answers(alice, bob, carol), b.version(bob)
	b.spoil(alice, "m.room.tombstone", "m.room.grave")
	r := b.want(exitOK, "refresh-defaults", "-yes")
	if r.stdout != "3 sets: 1 refreshed, 0 left with unknown default rules, 0 unreadable\n\n"+
		"DEFAULT RULE                USERS: ADDED  REMOVED  CHANGED\noverride .m.rule.tombstone  0             0        1\n" || !maps.Equal(want, b.answers(alice, bob, carol)) {
		t.Error(r.stdout)
	}
	if b.version(bob) != version {
		t.Error("wrote a current set")
	}

	// pushctl knows the hosts' default rules only from their file.
	rules := filepath.Join(t.TempDir(), "rules")
	text := `[{"kind":"underride","rule_id":".org.example.poll","enabled":false,"actions":["notify"],` +
		`"conditions":[{"kind":"event_match","key":"type","pattern":"m.poll.start"}],"before":".m.rule.message"}]`
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r = b.want(exitOK, "refresh-defaults", "-yes", "-default-rules", rules)
	if !strings.HasPrefix(r.stdout, "3 sets: 3 refreshed") {
		t.Error(r.stdout)
	}
	b.editRules(alice, func(rules *pushrule.Ruleset) error {
		return rules.SetEnabled(pushrule.Underride, ".org.example.poll", true)
	})
	b.want(exitOK, "check", "-default-rules", rules)
	before := b.stored()
	r = b.want(exitProblems, "refresh-defaults", "-yes", "-list")
	if !strings.Contains(r.stdout, "left\tunknown default rules\t"+string(alice)+"\n") || !maps.Equal(before, b.stored()) {
		t.Error(r.stdout)
	}
	b.want(exitProblems, "repair", "-yes")
	if !maps.Equal(before, b.stored()) {
		t.Error("repair removed a user's choice about a default rule of the hosts")
	}
	b.want(exitOK, "refresh-defaults", "-yes", "-drop-others")
	if !maps.Equal(want, b.answers(alice, bob, carol)) {
		t.Error("the answers differ")
	}

	b.store(bob, "no JSON")
	b.says("1 unreadable", exitProblems, "refresh-defaults", "-yes")
}

func TestRefreshDefaultsTurnsFeaturesOnAndOff(t *testing.T) {
	t.Parallel()
	const end = ".org.matrix.msc3930.rule.poll_end"
	b := onOne(t)
	b.register(alice, bob)
	off := b.answers(bob)
	refresh := func(status int, want string, flags ...string) {
		t.Helper()
		if r := b.want(status, append([]string{"refresh-defaults", "-yes"}, flags...)...); !strings.HasPrefix(r.stdout, want) {
			t.Error(r.stdout)
		}
	}
	refresh(exitOK, "2 sets: 2 refreshed", "-features", "polls")
	b.editRules(alice, func(rules *pushrule.Ruleset) error { return rules.SetEnabled(pushrule.Underride, end, false) })
	on := b.answers(alice)

	before := b.stored()
	for _, command := range []string{"check", "repair"} {
		b.says(string(pushrule.FeatureOff)+"\t"+string(alice), exitProblems, command, "-list")
	}
	b.want(exitProblems, "repair", "-yes")
	if !maps.Equal(before, b.stored()) {
		t.Error("repair removed rules of a feature, which hosts may have")
	}
	refresh(exitOK, "2 sets: 2 refreshed, 0 left with unknown default rules, 0 unreadable\n"+
		"2 sets lost the rules of polls, which is not in -features; users' choices are kept\n")
	if got := b.answers(bob); !maps.Equal(got, off) {
		t.Errorf("off: got %v, want %v", got, off)
	}
	refresh(exitOK, "2 sets: 2 refreshed", "-features", "polls")
	if got := b.answers(alice); !maps.Equal(got, on) {
		t.Errorf("on again: got %v, want %v", got, on)
	}
	b.complains("-features: unknown feature \"pols\", want some of polls, ", exitFailure, "refresh-defaults", "-features", "pols")
}

// A forgotten -features would remove the rules of all users.
func TestRefreshDefaultsFirstShowsTheRulesOfHowManyUsers(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob)
	b.want(exitOK, "refresh-defaults", "-yes", "-features", "polls")
	b.register(carol) // without the feature
	b.spoil(bob, "m.room.tombstone", "m.room.grave")
	before := b.stored()
	for name, test := range map[string]struct {
		flags []string
		text  string
		rules []refreshedRule
		off   map[string]int
	}{
		"the flag is forgotten": {
			nil,
			"3 sets: 2 would be refreshed (-yes does it), 0 left with unknown default rules, 0 unreadable\n" +
				"2 sets would lose the rules of polls, which is not in -features; users' choices are kept\n",
			[]refreshedRule{
				{"override", ".m.rule.tombstone", 0, 0, 1}, {"override", ".org.matrix.msc3930.rule.poll_response", 0, 2, 0},
				{"underride", ".org.matrix.msc3930.rule.poll_end", 0, 2, 0}, {"underride", ".org.matrix.msc3930.rule.poll_end_one_to_one", 0, 2, 0},
				{"underride", ".org.matrix.msc3930.rule.poll_start", 0, 2, 0}, {"underride", ".org.matrix.msc3930.rule.poll_start_one_to_one", 0, 2, 0},
			},
			map[string]int{"polls": 2},
		},
		"the flag is right": {
			[]string{"-features", "polls"},
			"3 sets: 2 would be refreshed (-yes does it), 0 left with unknown default rules, 0 unreadable\n",
			[]refreshedRule{
				{"override", ".m.rule.tombstone", 0, 0, 1}, {"override", ".org.matrix.msc3930.rule.poll_response", 1, 0, 0},
				{"underride", ".org.matrix.msc3930.rule.poll_end", 1, 0, 0}, {"underride", ".org.matrix.msc3930.rule.poll_end_one_to_one", 1, 0, 0},
				{"underride", ".org.matrix.msc3930.rule.poll_start", 1, 0, 0}, {"underride", ".org.matrix.msc3930.rule.poll_start_one_to_one", 1, 0, 0},
			},
			map[string]int{},
		},
	} {
		r := b.want(exitProblems, append([]string{"refresh-defaults"}, test.flags...)...)
		if !strings.HasPrefix(r.stdout, test.text) || strings.Count(r.stdout, "\n") != strings.Count(test.text, "\n")+2+len(test.rules) {
			t.Errorf("%s: %s", name, r.stdout)
		}
		var got refreshReport
		r = b.want(exitProblems, append([]string{"refresh-defaults", "-json"}, test.flags...)...)
		err := json.Unmarshal([]byte(r.stdout), &got)
		want := refreshReport{Sets: 3, Refreshed: 2, FeaturesOff: test.off, Rules: test.rules}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v, %v", name, got, want, err)
		}
		if !maps.Equal(before, b.stored()) {
			t.Errorf("%s: a command without -yes changed data", name)
		}
	}
	b.want(exitOK, "refresh-defaults", "-yes", "-features", "polls")
	if r := b.want(exitOK, "refresh-defaults", "-features", "polls"); !strings.HasPrefix(r.stdout, "3 sets: 0 would be refreshed") {
		t.Error(r.stdout)
	}
}

func TestDefaultRulesAreReadStrictly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[]`:   "",
		`{}`:   "cannot unmarshal object",
		`[{}]`: "default rule",
		`[{"kind":"underride","rule_id":".x","actions":[],"colour":1}]`: `unknown field "colour"`,
		`[{"kind":"underride","rule_id":"x","actions":[]}]`:             "want an id of a dot",
	} {
		file := filepath.Join(t.TempDir(), "rules")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readDefaultRules(file, nil); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func TestResetAndForget(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *fixture{"single": onOne, "cluster": onCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.register(alice, bob)
			before, others := b.answers(alice), b.answers(bob)
			stored, version := b.stored(), b.version(alice)
			for _, command := range []string{"reset", "forget"} {
				if r := b.want(exitOK, command, string(alice)); !strings.HasPrefix(r.stdout, "would ") || !maps.Equal(stored, b.stored()) {
					t.Errorf("%s without -yes: %s", command, r.stdout)
				}
			}
			saved := filepath.Join(t.TempDir(), "saved")
			b.want(exitOK, "reset", "-yes", "-save", saved, string(alice))
			content, err := b.rules.Load(t.Context(), alice)
			if defaults := b.defaults.For(alice); err != nil || !content.Rules.Equal(defaults) || content.Version <= version {
				t.Errorf("version %d after %d, %v", content.Version, version, err)
			}
			b.want(exitOK, "import", "-overwrite", saved)
			if !maps.Equal(before, b.answers(alice)) {
				t.Error("import did not restore the saved data")
			}
			if r := b.ctl("reset", "-yes", "-save", saved, string(alice)); r.status != exitFailure || !maps.Equal(before, b.answers(alice)) {
				t.Errorf("overwrote a saved file: status %d", r.status)
			}
			b.store(alice, "no JSON")
			b.want(exitOK, "reset", "-yes", string(alice))
			b.want(exitOK, "check")

			if err := b.client.RPush(t.Context(), b.keys.Unread(alice), "a list of unread notifications").Err(); err != nil {
				t.Fatal(err)
			}
			b.want(exitOK, "forget", "-yes", string(alice))
			for key := range b.stored() {
				if strings.Contains(key, string(alice)) {
					t.Errorf("%s still exists", key)
				}
			}
			if entry, err := b.index.Load(t.Context(), aPusher(string(alice)).Digest()); err != nil || entry.By == alice || slices.Contains(entry.Users, alice) {
				t.Errorf("the entry is %v, %v", entry, err)
			}
			if !maps.Equal(others, b.answers(bob)) {
				t.Error("another user has changed")
			}
			b.want(exitOK, "check")
			for _, args := range [][]string{{"forget", string(alice)}, {"forget", "-yes", string(alice)}} {
				if r := b.want(exitProblems, args...); !strings.Contains(r.stderr, "no push rules and no pushers") || r.stdout != "" {
					t.Errorf("%s of a user without data: %s", args, r.stdout)
				}
			}

			if err := b.client.RPush(t.Context(), b.keys.Unread(alice), "unread counts alone").Err(); err != nil {
				t.Fatal(err)
			}
			b.want(exitOK, "forget", "-yes", string(alice))
			b.want(exitProblems, "forget", "-yes", string(alice))

			stored = b.stored()
			for _, args := range [][]string{{"reset", string(alice)}, {"reset", "-yes", string(alice)}} {
				if r := b.ctl(args...); r.status != exitProblems || !strings.Contains(r.stderr, "no push rules and no pushers") || !maps.Equal(stored, b.stored()) {
					t.Errorf("%s of a user without data: status %d, %s%s", args, r.status, r.stdout, r.stderr)
				}
			}
		})
	}
}

// Only the version that wrote the counts removes them.
func TestForgetRefusesUnreadCountsOfALaterVersion(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	b.do("RPUSH", b.keys.Unread(alice), "9x")
	before := b.stored()
	for _, args := range [][]string{{"forget", string(alice)}, {"forget", "-yes", string(alice)}} {
		b.complains("of another version", exitFailure, args...)
	}
	if after := b.stored(); !maps.Equal(before, after) {
		t.Errorf("got %v, want %v", after, before)
	}
}
