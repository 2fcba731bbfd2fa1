package rulestore

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

func eventOf(rules pushrule.Ruleset) string {
	e := stored.Event{Rules: rules, Found: true}
	return e.Text(stored.Revision{})
}

func TestReplaceRequiresTheExactOldEvent(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unreadable":                      `{"type":"m.push_rules","content":{"global":[` + strings.Repeat(" ", 2000) + `]}}`,
		"unreadable, with a revision":     `{"content":{"global":[]},"revision":{"version":8000000000000000,"changes":1,"writers":{}}}`,
		"not JSON":                        `hello`,
		"with unknown members":            `{"x":1,"content":{"y":[],"global":{}},"revision":{"version":8000000000000000,"changes":3,"writers":{}}}`,
		"in the store's form":             eventOf(pushrule.ServerDefault(alice)),
		"larger than a script's argument": `{"content":{"global":{"a":"` + strings.Repeat("x", 100_000) + `"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, _, client := newStore(t, rediscommit.DefaultConfig())
			replace := func(old *string, text string, want bool) {
				t.Helper()
				if done, err := store.Replace(t.Context(), alice, old, text); err != nil || done != want {
					t.Errorf("got %t, %v; want %t", done, err, want)
				}
			}
			if err := client.Set(t.Context(), aliceKey, text, 0).Err(); err != nil {
				t.Fatal(err)
			}
			other := text + " "
			replace(&other, eventOf(pushrule.ServerDefault(alice)), false)
			replace(nil, eventOf(pushrule.ServerDefault(alice)), false)
			before, _ := stored.ReadEvent(text)
			replace(&text, eventOf(pushrule.ServerDefault(alice)), true)
			got, err := store.Load(t.Context(), alice)
			if want := pushrule.ServerDefault(alice); err != nil || !got.Rules.Equal(want) || got.Version <= max(before.Revision.Version, stored.LastRevision(text).Version) {
				t.Errorf("got version %d, %v", got.Version, err)
			}

			now := client.Get(t.Context(), aliceKey).Val()
			replace(&now, text, true)
			again := client.Get(t.Context(), aliceKey).Val()
			after, err := stored.ReadEvent(again)
			switch {
			case err != nil:
				if again != text {
					t.Errorf("got %q", again)
				}
			case after.Revision.Version <= got.Version || after.Text(stored.Revision{}) != before.Text(stored.Revision{}):
				t.Errorf("got version %d after %d: %s", after.Revision.Version, got.Version, again)
			}
		})
	}
}

// A write prepared before a replacement must fail, even if the same rules are back.
func TestReplaceInvalidatesPreparedWrites(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t, rediscommit.DefaultConfig())
	late, err := New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Update(t.Context(), alice, put("!a")); err != nil { // fills the cache of late
		t.Fatal(err)
	}
	copied := client.Get(t.Context(), aliceKey).Val()
	client.Del(t.Context(), aliceKey)
	if done, err := store.Replace(t.Context(), alice, nil, copied); err != nil || !done {
		t.Fatal(done, err)
	}
	if again := client.Get(t.Context(), aliceKey).Val(); again == copied {
		t.Fatal("the revision is the same")
	}
	tries := 0
	if _, err := late.Update(t.Context(), alice, func(rules *pushrule.Ruleset, found bool) error {
		tries++
		return put("!b")(rules, found)
	}); err != nil || tries != 2 {
		t.Errorf("%d tries, %v", tries, err)
	}
	if got := ids(t, store); got != "!b !a" {
		t.Errorf("got %q", got)
	}
}
