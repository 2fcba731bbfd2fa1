package rulestore

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

const (
	alice    mxid.UserID = "@alice:example.org"
	aliceKey string      = "account_data:{@alice:example.org}:m.push_rules"
)

func newStore(t *testing.T, cfg rediscommit.Config) (*Store, *redistest.Server, *redis.Client) {
	t.Helper()
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	store, err := New(client, cfg, rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return store, server, client
}

func put(id string) func(*pushrule.Ruleset, bool) error {
	return func(rules *pushrule.Ruleset, _ bool) error {
		return rules.Put(pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
	}
}

func remove(id string) func(*pushrule.Ruleset, bool) error {
	return func(rules *pushrule.Ruleset, _ bool) error { return rules.Delete(pushrule.Room, id) }
}

func ids(t *testing.T, s *Store) string {
	t.Helper()
	content, err := s.Load(t.Context(), alice)
	if err != nil {
		t.Fatal(err)
	}
	rules := content.Rules
	var ids []string
	for _, rule := range rules.List(pushrule.Room) {
		ids = append(ids, rule.ID)
	}
	return strings.Join(ids, " ")
}

func TestSwapScriptReplacesOnlyTheExpectedEvent(t *testing.T) {
	t.Parallel()
	_, _, client := newStore(t, rediscommit.DefaultConfig())
	run := func(args ...any) bool {
		t.Helper()
		done, err := client.Eval(t.Context(), swapScript, []string{aliceKey}, args...).Bool()
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	for i, step := range []struct {
		args   []any
		done   bool
		stored string
	}{
		{[]any{"a", "c", "", "x"}, false, ""},
		{[]any{"a", "c", ""}, true, "a"},
		{[]any{"a", "c", ""}, false, "a"},
		{[]any{"b", "c", "", "x"}, false, "a"},
		{[]any{"b", "c", "", "a"}, true, "b"},
		{[]any{"b", "c", "", "a"}, false, "b"},
		{[]any{"\x00\xff", "c", "", "b"}, true, "\x00\xff"},
		{[]any{"", "c", "", "\x00\xff"}, true, ""},
		{[]any{"c", "c", ""}, false, ""},
		{[]any{"c", "c", "", ""}, true, "c"},
	} {
		if done := run(step.args...); done != step.done {
			t.Errorf("step %d: done %t", i, done)
		}
		if got := client.Get(t.Context(), aliceKey).Val(); got != step.stored {
			t.Errorf("step %d: stored is %q, want %q", i, got, step.stored)
		}
	}
}

func TestSwapScriptComparesTheSuffix(t *testing.T) {
	t.Parallel()
	_, _, client := newStore(t, rediscommit.DefaultConfig())
	const last = `"W":7}}}`
	old := strings.Repeat("an event ", 500) + last
	suffix, found := rediscommit.SuffixOf(old, stored.Revision{Writes: []stored.Write{{Writer: "V", Attempt: 7}, {Writer: "W", Attempt: 7}}})
	if !found || suffix.Text != last {
		t.Fatalf("the suffix is %+v", suffix)
	}
	for name, test := range map[string]struct {
		stored string
		done   bool
	}{
		"the same":                   {old, true},
		"another write":              {old[:len(old)-len(last)] + `"W":8}}}`, false},
		"longer, with the suffix":    {"x" + old, false},
		"longer, with more after it": {old + "x", false},
		"shorter, with the suffix":   {old[1:], false},
		"empty":                      {"", false},
	} {
		client.Set(t.Context(), aliceKey, test.stored, 0)
		args := append([]any{"new", "c", "m"}, suffix.Args()...)
		done, err := client.Eval(t.Context(), swapScript, []string{aliceKey}, args...).Bool()
		if err != nil || done != test.done {
			t.Errorf("%s: done %t, %v", name, done, err)
		}
		want := test.stored
		if test.done {
			want = "new"
		}
		if got := client.Get(t.Context(), aliceKey).Val(); got != want {
			t.Errorf("%s: stored is %.20q, want %.20q", name, got, want)
		}
	}
}
