package pusherstore

import (
	"maps"
	"testing"

	"github.com/pushfx/pushfx/module/pusher"
)

func TestAHashIsReadAsFarAsItCanBe(t *testing.T) {
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
	h := ReadHash(fields)
	if h.Pushers.Len() != 2 || len(h.Unreadable) != 2 || h.Cause.Error() != "Invalid pusher in database: the field is not the pusher's key" || h.Stamp.Changes != 2 {
		t.Fatalf("got %+v", h)
	}

	// What cannot be read is taken out of exactly this hash.
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
	stored := client.HGetAll(t.Context(), aliceKey).Val()
	if !SameFields(stored, whole) || stored[stampField] == whole[stampField] || ReadHash(stored).Stamp.Version <= h.Stamp.Version {
		t.Errorf("got %q", stored)
	}

	// A hash comes back with a stamp of its own.
	client.Del(t.Context(), aliceKey)
	if done, err := store.Replace(t.Context(), alice, nil, fields); err != nil || !done {
		t.Errorf("got %t, %v", done, err)
	}
	if back := client.HGetAll(t.Context(), aliceKey).Val(); !SameFields(back, fields) || back[stampField] == fields[stampField] {
		t.Errorf("got %q", back)
	}
}

func TestResetRemovesExactlyTheClaimsThatWereThere(t *testing.T) {
	t.Parallel()
	_, server, client := newStore(t)
	index, err := NewIndex(client, DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	digest := pusher.Key{AppID: "app", Pushkey: "key"}.Digest()
	client.Set(t.Context(), claimsKey(digest), `{"claims":[]}`, 0)
	if done, err := index.Reset(t.Context(), digest, `{"claims":{}}`); err != nil || done {
		t.Errorf("got %t, %v", done, err)
	}
	if done, err := index.Reset(t.Context(), digest, `{"claims":[]}`); err != nil || !done {
		t.Errorf("got %t, %v", done, err)
	}
	claims, err := index.Load(t.Context(), digest)
	if err != nil || len(claims.Owners()) != 0 || server.TTL(claimsKey(digest)) != emptyAge {
		t.Errorf("got %v, %v", claims, err)
	}
}
