package pusherstore

import (
	"maps"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

func sameFields(a, b map[string]string) bool {
	return maps.Equal(stored.HashFields(a), stored.HashFields(b))
}

func TestReplaceRequiresTheExactOldHash(t *testing.T) {
	t.Parallel()
	store, _, client := newStore(t)
	for _, pushkey := range []string{"a", "b"} {
		if err := store.Update(t.Context(), alice, set(pushkey)); err != nil {
			t.Fatal(err)
		}
	}
	whole := client.HGetAll(t.Context(), aliceKey).Val()
	client.HSet(t.Context(), aliceKey, `["app","c"]`, whole[`["app","a"]`], `["app","d"]`, "s3cret")
	fields := client.HGetAll(t.Context(), aliceKey).Val()
	h := stored.ReadHash(fields)
	if h.Pushers.Len() != 2 || len(h.Unreadable) != 2 || h.Revision.Changes != 2 {
		t.Fatalf("got %+v", h)
	}

	// Unreadable pushers are removed only from exactly this hash.
	left := maps.Clone(fields)
	for _, field := range h.Unreadable {
		delete(left, field)
	}
	if done, err := store.Replace(t.Context(), alice, whole, left); err != nil || done {
		t.Errorf("another hash was replaced: %t, %v", done, err)
	}
	if done, err := store.Replace(t.Context(), alice, fields, left); err != nil || !done {
		t.Errorf("got %t, %v", done, err)
	}
	now := client.HGetAll(t.Context(), aliceKey).Val()
	if !sameFields(now, whole) || now[stored.RevisionField] == whole[stored.RevisionField] || stored.ReadHash(now).Revision.Version <= h.Revision.Version {
		t.Errorf("got %q", now)
	}

	// A restored hash gets a new revision.
	client.Del(t.Context(), aliceKey)
	if done, err := store.Replace(t.Context(), alice, nil, fields); err != nil || !done {
		t.Errorf("got %t, %v", done, err)
	}
	if back := client.HGetAll(t.Context(), aliceKey).Val(); !sameFields(back, fields) || back[stored.RevisionField] == fields[stored.RevisionField] {
		t.Errorf("got %q", back)
	}
}

func TestResetRequiresTheExactOldEntry(t *testing.T) {
	t.Parallel()
	_, _, client := newStore(t)
	index, err := NewIndex(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	digest := pusher.Key{AppID: "app", Pushkey: "key"}.Digest()
	client.Set(t.Context(), stored.Keys{}.Pushkey(digest), `{"holders":[]}`, 0)
	if done, err := index.Reset(t.Context(), digest, `{"holders":{}}`); err != nil || done {
		t.Errorf("got %t, %v", done, err)
	}
	if done, err := index.Reset(t.Context(), digest, `{"holders":[]}`); err != nil || !done {
		t.Errorf("got %t, %v", done, err)
	}
	entry, err := index.Load(t.Context(), digest)
	if err != nil || !entry.Equal(pusher.Entry{}) || !lives(client.TTL(t.Context(), stored.Keys{}.Pushkey(digest)).Val(), pusher.EntryDays*24*time.Hour) {
		t.Errorf("got %v, %v", entry, err)
	}
}

func TestOnlyTheEntryOfAnAddressWithUsersLasts(t *testing.T) {
	t.Parallel()
	_, _, client := newStore(t)
	index, err := NewIndex(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	digest := pusher.Key{AppID: pusher.EmailAppID, Pushkey: "a@example.org"}.Digest()
	for step, test := range []struct {
		edit func(*pusher.Entry)
		want time.Duration
	}{
		{func(e *pusher.Entry) { e.Claim(alice, pusher.KeepOthers, 1) }, pusher.EntryDays * 24 * time.Hour},
		{func(e *pusher.Entry) { e.Address = true }, 0},
		{func(e *pusher.Entry) { e.Forget(alice) }, pusher.EntryDays * 24 * time.Hour},
		{func(e *pusher.Entry) { e.Claim(alice, pusher.KeepOthers, 1) }, 0},
	} {
		_, err := index.Update(t.Context(), digest, func(e *pusher.Entry) error { test.edit(e); return nil })
		if left := client.TTL(t.Context(), stored.Keys{}.Pushkey(digest)).Val(); err != nil || !lives(left, test.want) {
			t.Errorf("step %d: expires in %v, %v, want %v", step, left, err, test.want)
		}
	}
}
