package pusherstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/redistest"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

const (
	alice    mxid.UserID = "@alice:example.org"
	aliceKey string      = "pushers:{@alice:example.org}"
)

func newStore(t *testing.T) (*Store, *miniredis.Miniredis, *redis.Client) {
	t.Helper()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	store, err := New(client, DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	return store, server, client
}

func aPusher(pushkey string) pusher.Pusher {
	return pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.Email, Lang: "en", Data: "{}", Device: "DEV"}
}

func set(pushkey string) func(*pusher.List) error {
	return func(list *pusher.List) error {
		list.Set(aPusher(pushkey))
		return nil
	}
}

// toggle deletes a pusher that is there and sets one that is not: run twice,
// it has no effect.
func toggle(pushkey string) func(*pusher.List) error {
	return func(list *pusher.List) error {
		if !list.Delete(aPusher(pushkey).Key) {
			list.Set(aPusher(pushkey))
		}
		return nil
	}
}

func pushkeys(t *testing.T, s *Store) string {
	t.Helper()
	list, err := s.Load(t.Context(), alice)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, p := range list.All() {
		keys = append(keys, p.Pushkey)
	}
	return strings.Join(keys, " ")
}

func TestTheStoredForm(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t)
	for _, key := range []string{"k1", "k2"} {
		if err := store.Update(t.Context(), alice, set(key)); err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range []string{"k1", "k2"} {
		want := fmt.Sprintf(`{"pushkey":%q,"kind":"email","app_id":"app","app_display_name":"","device_display_name":"",`+
			`"lang":"en","data":{},"created":%d,"device_id":"DEV"}`, key, i+1)
		if got := server.HGet(aliceKey, `["app","`+key+`"]`); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if fields, _ := server.HKeys(aliceKey); len(fields) != 2 {
		t.Errorf("got fields %q, want one for each pusher", fields)
	}
}

func TestAChangeWhoseReplyIsLostHasOneEffect(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t)
	if err := store.Update(t.Context(), alice, toggle("a")); err != nil {
		t.Fatal(err)
	}
	redistest.LoseScriptReplies(client, func(n int64) bool { return n <= 2 })
	for _, key := range []string{"a", "b"} {
		if err := store.Update(t.Context(), alice, toggle(key)); err != nil {
			t.Error(err)
		}
	}
	if got := pushkeys(t, store); got != "b" {
		t.Errorf("got pushers %q", got)
	}
}

func TestARepeatedWriteChangesNothingAndSucceeds(t *testing.T) {
	t.Parallel()
	store, _, _ := newStore(t)
	write := func(id string, old map[string]string, list pusher.List) (bool, error) {
		deletes, sets := difference(old, list)
		return store.write(t.Context(), alice, id, old, deletes, sets)
	}
	a, b := pusher.NewList(aPusher("a")), pusher.NewList(aPusher("b"))
	if done, err := write("write-1", nil, a); !done || err != nil {
		t.Fatal(done, err)
	}
	old, _, err := store.read(t.Context(), alice)
	if err != nil {
		t.Fatal(err)
	}
	if done, err := write("write-2", old, b); !done || err != nil {
		t.Fatal(done, err)
	}
	if done, err := write("write-1", nil, a); !done || err != nil {
		t.Errorf("repeated write: done %t, error %v", done, err)
	}
	if done, err := write("write-3", old, pusher.List{}); done || err != nil {
		t.Errorf("write over what has changed: done %t, error %v", done, err)
	}
	if got := pushkeys(t, store); got != "b" {
		t.Errorf("got pushers %q", got)
	}
}

func TestARefusedWriteNeverTakesEffect(t *testing.T) {
	t.Parallel()
	store, _, _ := newStore(t)
	ctx, errRefused := t.Context(), errors.New("refused")
	for range 2 { // the second time, as when the first reply was lost
		done, err := store.refuse(ctx, alice, commit.Write{ID: "write-1", Again: true}, errRefused)
		if done || !errors.Is(err, errRefused) {
			t.Errorf("refusing: done %t, error %v", done, err)
		}
	}
	deletes, sets := difference(nil, pusher.NewList(aPusher("a")))
	if done, err := store.write(ctx, alice, "write-1", nil, deletes, sets); done || err != nil {
		t.Errorf("the refused write arrives late: done %t, error %v", done, err)
	}
	if got := pushkeys(t, store); got != "" {
		t.Errorf("got pushers %q", got)
	}
	if done, err := store.write(ctx, alice, "write-2", nil, deletes, sets); !done || err != nil {
		t.Fatal(done, err)
	}
	if done, err := store.refuse(ctx, alice, commit.Write{ID: "write-2", Again: true}, errRefused); !done || err != nil {
		t.Errorf("refusing what took effect: done %t, error %v", done, err)
	}
}

func TestReceiptsGoAway(t *testing.T) {
	t.Parallel()
	store, server, _ := newStore(t)
	began := time.Unix(1_700_000_000, 0)
	server.SetTime(began)
	for range 4 {
		if err := store.Update(t.Context(), alice, toggle("a")); err != nil {
			t.Fatal(err)
		}
	}
	server.SetTime(began.Add(receiptLifetime + time.Second))
	if err := store.Update(t.Context(), alice, toggle("a")); err != nil {
		t.Fatal(err)
	}
	if members, _ := server.ZMembers(aliceKey + ":writes"); len(members) != 1 {
		t.Errorf("got %d receipts, want only the last minute's", len(members))
	}
	if ttl := server.TTL(aliceKey + ":writes"); ttl != receiptLifetime {
		t.Errorf("the receipts live for %v", ttl)
	}
}

func TestWhatCannotBeReadIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(*miniredis.Miniredis){
		"no JSON":              func(s *miniredis.Miniredis) { s.HSet(aliceKey, `["app","a"]`, "secret") },
		"no pusher":            func(s *miniredis.Miniredis) { s.HSet(aliceKey, `["app","a"]`, `{"pushkey":"secret"}`) },
		"another pusher's key": func(s *miniredis.Miniredis) { s.HSet(aliceKey, "x", string(aPusher("secret").AppendStored(nil))) },
		"another type":         func(s *miniredis.Miniredis) { s.Set(aliceKey, "secret") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, server, _ := newStore(t)
			plant(server)
			before := server.Dump()
			_, err := store.Load(t.Context(), alice)
			for _, err := range []error{err, store.Update(t.Context(), alice, set("a"))} {
				if fault.KindOf(err) != fault.Database || strings.Contains(err.Error(), "secret") {
					t.Errorf("got error %v", err)
				}
			}
			if after := server.Dump(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	_, err := New(nil, Config{KeyPrefix: "{a}"})
	for _, field := range []string{"pusherstore", "KeyPrefix", "OperationTimeout"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}
