package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

func fileWith(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "event.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const lunch = `{"type":"m.room.message","room_id":"!r:example.org","sender":"@bob:example.org",` +
	`"content":{"msgtype":"m.text","body":"Lunch\u001b[31m? @room","m.mentions":{"room":true}}}`

const state = `[{"type":"m.room.create","state_key":"","sender":"@bob:example.org","content":{"room_version":"10"}},
	{"type":"m.room.power_levels","state_key":"","content":{"users":{"@bob:example.org":20}}},
	{"type":"m.room.member","state_key":"@alice:example.org","content":{"membership":"join","displayname":"Alice"}},
	{"type":"m.room.member","state_key":"@bob:example.org","content":{"membership":"join"}},
	{"type":"m.room.member","state_key":"@carol:example.org","content":{"membership":"leave"}}]`

func TestExplain(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.storeForGolden()
	event := fileWith(t, lunch)
	for file, args := range map[string][]string{
		"explain.txt":  {"explain", string(alice), event, "-state", fileWith(t, state)},
		"explain.json": {"explain", string(alice), event, "-json"},
	} {
		checkGolden(t, file, b.want(exitOK, args...).stdout)
	}
}

func TestExplainReadsAnEventFromStdin(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	for text, want := range map[string]string{lunch: "", "{": "-: "} {
		var out bytes.Buffer
		err := (&call{backend: b.backend, args: []string{string(alice), "-"}, in: strings.NewReader(text), out: &out}).explain(t.Context())
		if want == "" && (err != nil || !strings.Contains(out.String(), "The event notifies "+string(alice))) ||
			want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: got %v, %s", text, err, out.String())
		}
	}
}

func TestExplainTellsWhyThereIsNoPush(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	if err := b.host.EnsureDefaults(t.Context(), bob); err != nil {
		t.Fatal(err)
	}
	b.register("@quiet:example.org", "@away:example.org")
	b.editRules("@quiet:example.org", func(rules *pushrule.Ruleset) error {
		return rules.SetEnabled(pushrule.Override, ".m.rule.master", true)
	})
	off := aPusher("@away:example.org")
	off.Extra = []pusher.Member{{Name: "enabled", Value: "false"}}
	if err := b.service.Set(t.Context(), "@away:example.org", off, pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	event, muted := fileWith(t, lunch), fileWith(t, strings.Replace(lunch, "!r:", "!room:", 1))
	for _, test := range []struct {
		user  mxid.UserID
		event string
		want  []string
	}{
		{alice, event, []string{"The event notifies @alice:example.org: the underride rule .m.rule.message decides", "Pushers: 1, enabled: 1."}},
		{alice, muted, []string{"does not notify", "the room rule !room:example.org decides, its actions are []"}},
		{"@quiet:example.org", event, []string{"does not notify", "the override rule .m.rule.master decides"}},
		{"@away:example.org", event, []string{"notifies", "The user's pushers are disabled (1): nothing is pushed."}},
		{bob, event, []string{"does not notify @bob:example.org: the user is the sender.", "The user has no pushers: nothing is pushed."}},
		{alice, fileWith(t, `{"type":"m.typing","sender":"@bob:example.org","content":{}}`), []string{"does not notify", "no rule matches."}},
	} {
		r := b.want(exitOK, "explain", string(test.user), test.event)
		for _, want := range test.want {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%s: want %q in\n%s", test.user, want, r.stdout)
			}
		}
	}
	const note = "a host may decide otherwise, for example in a room of two. Give it by -state."
	for n, args := range [][]string{{"explain", string(alice), event, "-state", fileWith(t, state)}, {"explain", string(alice), event}} {
		if r := b.want(exitOK, args...); strings.Contains(r.stdout, note) != (n == 1) {
			t.Errorf("%s: got %s", args, r.stdout)
		}
	}
	for _, test := range []struct {
		status int
		args   []string
		want   string
	}{
		{exitProblems, []string{string(carol), event}, "has no push rules and no pushers"},
		{exitFailure, []string{string(alice), event + "x"}, "no such file"},
		{exitFailure, []string{string(alice), fileWith(t, "[]")}, "not"},
		{exitFailure, []string{string(alice), event, "-state", fileWith(t, "{}")}, "-state: "},
		{exitFailure, []string{string(alice), event, "-state", fileWith(t, "[]")}, "m.room.create"},
	} {
		b.complains(test.want, test.status, append([]string{"explain"}, test.args...)...)
	}
}
