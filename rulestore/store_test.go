package rulestore

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
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

var aRevision = regexp.MustCompile(`\d{16},"changes":1,"writers":\{"[A-Z2-7]{13}":(\d+)\}`)

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

func TestReadEventDistinguishesMissingFromUnreadable(t *testing.T) {
	t.Parallel()
	const missing, unreadable = "missing", "unreadable"
	for text, want := range map[string]string{
		`{"type":"m.push_rules","content":{"global":{}}}`: "",
		` { "content" : { "global" : { } } } `:            "",
		`{}`:                                              missing,
		`{"content":null}`:                                missing,
		`{"content":[]}`:                                  missing,
		`{"content":"x"}`:                                 missing,
		`{"content":0}`:                                   missing,
		``:                                                unreadable,
		`x`:                                               unreadable,
		`[]`:                                              unreadable,
		`null`:                                            unreadable,
		`{"content":{}}`:                                  unreadable,
		`{"content":{"global":[]}}`:                       unreadable,
		`{"content":{"global":null}}`:                     unreadable,
		`{"content":{"global":{}}} x`:                     unreadable,
		`{"content":{"global":{}},"content":{"global":{}}}`:                                           unreadable,
		`{"content":{"global":{"override":{}}}}`:                                                      unreadable,
		`{"content":{"global":{"room":[{"rule_id":"x"}]}}}`:                                           unreadable,
		`{"content":{"global":{"room":[{"rule_id":1,"default":false,"enabled":true,"actions":[]}]}}}`: unreadable,
		"{\"content\":{\"global\":{\"x\":\"\xff\"}}}":                                                 unreadable,
	} {
		e, err := stored.ReadEvent(text)
		got := ""
		switch {
		case fault.KindOf(err) == fault.Database:
			got = unreadable
		case err != nil:
			t.Errorf("%s: got error %v", text, err)
		case !e.Found:
			got = missing
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestUnknownMembersOfAnEventAreKept(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t, rediscommit.DefaultConfig())
	client.Set(t.Context(), aliceKey, `{"x":1.0,"content":{"y":[1e400],"global":{"z":{},"room":[]}},"type":"m.push_rules"}`, 0)
	if _, err := store.Update(t.Context(), alice, put("a")); err != nil {
		t.Fatal(err)
	}
	got := client.Get(t.Context(), aliceKey).Val()
	want := `{"type":"m.push_rules","content":{"global":{"override":[],"content":[],` +
		`"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[]}],"sender":[],"underride":[],"z":{}},"y":[1e400]},"x":1.0,"revision":{"version":1,"writers":{"W":1}}}`
	if got = aRevision.ReplaceAllString(got, `1,"writers":{"W":$1}`); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestChangeWithALostReplyTakesEffectOnce(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t, rediscommit.DefaultConfig())
	for _, id := range []string{"a", "b"} {
		if _, err := store.Update(t.Context(), alice, put(id)); err != nil {
			t.Fatal(err)
		}
	}
	proxy := redistest.NewProxy(t, server)
	lossy, err := New(proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }), rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	losses := []*redistest.Fault{proxy.CutReply(1, "EVALSHA"), proxy.CutReply(2, "EVALSHA")}
	if _, err := lossy.Update(t.Context(), alice, remove("a")); err != nil {
		t.Errorf("the delete took effect, but got error %v", err)
	}
	if _, err := lossy.Update(t.Context(), alice, put("c")); err != nil {
		t.Error(err)
	}
	for _, loss := range losses {
		<-loss.Struck()
	}
	if got := ids(t, store); got != "c b" {
		t.Errorf("got rules %q", got)
	}
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

func TestUnchangedRulesAreNotWritten(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t, rediscommit.DefaultConfig())
	if _, err := store.Update(t.Context(), alice, put("a")); err != nil {
		t.Fatal(err)
	}
	before := client.Get(t.Context(), aliceKey).Val()
	if _, err := store.Update(t.Context(), alice, put("a")); err != nil {
		t.Fatal(err)
	}
	if after := client.Get(t.Context(), aliceKey).Val(); after != before {
		t.Errorf("before %s\nafter  %s", before, after)
	}
}

func TestKeyOfAnotherTypeIsUnreadableAndStays(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t, rediscommit.DefaultConfig())
	client.LPush(t.Context(), aliceKey, "x")
	if _, err := store.Load(t.Context(), alice); fault.KindOf(err) != fault.Database {
		t.Errorf("got error %v", err)
	}
	if _, err := store.Update(t.Context(), alice, put("a")); fault.KindOf(err) != fault.Database {
		t.Errorf("got error %v", err)
	}
	if got := client.LRange(t.Context(), aliceKey, 0, -1).Val(); len(got) != 1 {
		t.Errorf("the key was changed: %v", got)
	}
}

func TestStoppedServerIsUnavailable(t *testing.T) {
	t.Parallel()
	cfg := rediscommit.DefaultConfig()
	cfg.OperationTimeout = 300 * time.Millisecond
	store, server, _ := newStore(t, cfg)
	server.Stop()
	if _, err := store.Load(t.Context(), alice); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got error %v", err)
	}
	_, err := store.Update(t.Context(), alice, put("a"))
	if fault.KindOf(err) != fault.Unavailable || errors.Unwrap(err) == nil {
		t.Errorf("got error %v, want one with a cause", err)
	}
}

func TestNewNamesEachWrongSetting(t *testing.T) {
	t.Parallel()
	_, err := New(nil, rediscommit.Config{KeyPrefix: "{a}", OperationTimeout: time.Hour}, rediscommit.Options{})
	for _, field := range []string{"rulestore", "KeyPrefix", "OperationTimeout", "LargeValueBytes"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}
