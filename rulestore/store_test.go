package rulestore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/redistest"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

const (
	alice    mxid.UserID = "@alice:example.org"
	aliceKey string      = "account_data:{@alice:example.org}:m.push_rules"
)

func newStore(t *testing.T, cfg Config) (*Store, *miniredis.Miniredis, *redis.Client) {
	t.Helper()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	store, err := New(client, cfg)
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
	rules, _, err := s.Load(t.Context(), alice)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, rule := range rules.List(pushrule.Room) {
		ids = append(ids, rule.ID)
	}
	return strings.Join(ids, " ")
}

func TestReadEventTellsMissingFromUnreadable(t *testing.T) {
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
		e, err := readEvent(text)
		got := ""
		switch {
		case fault.KindOf(err) == fault.Database:
			got = unreadable
		case err != nil:
			t.Errorf("%s: got error %v", text, err)
		case !e.found:
			got = missing
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestWhatTheEventHoldsBesideTheRulesSurvives(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t, DefaultConfig())
	server.Set(aliceKey, `{"x":1.0,"content":{"y":[1e400],"global":{"z":{},"room":[]}},"type":"m.push_rules"}`)
	if err := store.Update(t.Context(), alice, put("a")); err != nil {
		t.Fatal(err)
	}
	got, _ := server.Get(aliceKey)
	want := `{"type":"m.push_rules","content":{"global":{"override":[],"content":[],` +
		`"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[]}],"sender":[],"underride":[],"z":{}},"y":[1e400]},"x":1.0}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAChangeWhoseReplyIsLostHasOneEffectAndTheFirstAnswer(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t, DefaultConfig())
	for _, id := range []string{"a", "b"} {
		if err := store.Update(t.Context(), alice, put(id)); err != nil {
			t.Fatal(err)
		}
	}
	redistest.LoseScriptReplies(client, func(n int64) bool { return n <= 2 })
	if err := store.Update(t.Context(), alice, remove("a")); err != nil {
		t.Errorf("the delete took effect, its answer is %v", err)
	}
	if err := store.Update(t.Context(), alice, put("c")); err != nil {
		t.Error(err)
	}
	if got := ids(t, store); got != "c b" {
		t.Errorf("got rules %q", got)
	}
}

func TestARepeatedWriteChangesNothingAndSucceeds(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t, DefaultConfig())
	ctx := t.Context()
	const first, second = `{"content":{"global":{}}}`, `{"content":{"global":{"room":[]}}}`
	if done, err := store.write(ctx, alice, "write-1", nil, first); !done || err != nil {
		t.Fatal(done, err)
	}
	old := first
	if done, err := store.write(ctx, alice, "write-2", &old, second); !done || err != nil {
		t.Fatal(done, err)
	}
	if done, err := store.write(ctx, alice, "write-1", nil, first); !done || err != nil {
		t.Errorf("repeated write: done %t, error %v", done, err)
	}
	if got, _ := server.Get(aliceKey); got != second {
		t.Errorf("the repeated write undid a later one: %s", got)
	}
	if done, err := store.write(ctx, alice, "write-3", &old, `{}`); done || err != nil {
		t.Errorf("write over what has changed: done %t, error %v", done, err)
	}
}

func TestARefusedWriteNeverTakesEffect(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t, DefaultConfig())
	ctx, errRefused := t.Context(), errors.New("refused")
	for range 2 { // the second time, as when the first reply was lost
		done, err := store.refuse(ctx, alice, commit.Write{ID: "write-1", Again: true}, errRefused)
		if done || !errors.Is(err, errRefused) {
			t.Errorf("refusing: done %t, error %v", done, err)
		}
	}
	if done, err := store.write(ctx, alice, "write-1", nil, "{}"); done || err != nil {
		t.Errorf("the refused write arrives late: done %t, error %v", done, err)
	}
	if server.Exists(aliceKey) {
		t.Error("the refused write took effect")
	}
	if done, err := store.write(ctx, alice, "write-2", nil, "{}"); !done || err != nil {
		t.Fatal(done, err)
	}
	if done, err := store.refuse(ctx, alice, commit.Write{ID: "write-2", Again: true}, errRefused); !done || err != nil {
		t.Errorf("refusing what took effect: done %t, error %v", done, err)
	}
}

func TestReceiptsGoAway(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t, DefaultConfig())
	began := time.Unix(1_700_000_000, 0)
	server.SetTime(began)
	for range 3 {
		if err := store.Update(t.Context(), alice, put("a")); err != nil {
			t.Fatal(err)
		}
		if err := store.Update(t.Context(), alice, remove("a")); err != nil {
			t.Fatal(err)
		}
	}
	server.SetTime(began.Add(receiptLifetime + time.Second))
	if err := store.Update(t.Context(), alice, put("a")); err != nil {
		t.Fatal(err)
	}
	if members, _ := server.ZMembers(aliceKey + ":writes"); len(members) != 1 {
		t.Errorf("got %d receipts, want only the last minute's", len(members))
	}
	if ttl := server.TTL(aliceKey + ":writes"); ttl != receiptLifetime {
		t.Errorf("the receipts live for %v", ttl)
	}
	if ttl := server.TTL(aliceKey); ttl != 0 {
		t.Errorf("the event lives for %v", ttl)
	}
}

func TestAnEventMayNotGrowPastTheLimit(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.MaxEventBytes = 200
	store, server, _ := newStore(t, cfg)
	if err := store.Update(t.Context(), alice, put(strings.Repeat("x", 200))); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("got error %v", err)
	}
	if server.Exists(aliceKey) {
		t.Error("a refused event was stored")
	}
	server.Set(aliceKey, `{"type":"m.push_rules","content":{"global":{"override":[],"content":[],"room":[`+
		`{"rule_id":"a","default":false,"enabled":true,"actions":[]}],"sender":[],"underride":[]}},"x":"`+
		strings.Repeat("x", 300)+`"}`)
	if err := store.Update(t.Context(), alice, remove("a")); err != nil {
		t.Errorf("an event over the limit must be able to shrink: %v", err)
	}
}

func TestAKeyOfAnotherTypeIsUnreadableAndStays(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t, DefaultConfig())
	server.Lpush(aliceKey, "x")
	if _, _, err := store.Load(t.Context(), alice); fault.KindOf(err) != fault.Database {
		t.Errorf("got error %v", err)
	}
	if err := store.Update(t.Context(), alice, put("a")); fault.KindOf(err) != fault.Database {
		t.Errorf("got error %v", err)
	}
	if got, _ := server.List(aliceKey); len(got) != 1 {
		t.Errorf("the key was changed: %v", got)
	}
}

func TestAServerThatIsDownIsUnavailable(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.OperationTimeout = 300 * time.Millisecond
	store, server, _ := newStore(t, cfg)
	server.Close()
	if _, _, err := store.Load(t.Context(), alice); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got error %v", err)
	}
	err := store.Update(t.Context(), alice, put("a"))
	if fault.KindOf(err) != fault.Unavailable || errors.Unwrap(err) == nil {
		t.Errorf("got error %v, want one with a cause", err)
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	_, err := New(nil, Config{KeyPrefix: "{a}", OperationTimeout: time.Hour})
	for _, field := range []string{"rulestore", "KeyPrefix", "OperationTimeout", "MaxEventBytes"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}
