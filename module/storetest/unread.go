package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// Unread tests the contract of [module.UnreadStore].
func Unread(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(*testing.T) module.UnreadStore)
	}{
		{"a new user has no texts", noTexts},
		{"every host loads appended texts", textsRoundTrip},
		{"users are separate", textUsersApart},
		{"invalid user ids are refused, and an ended context changes nothing", refusedTextCalls},
		{"no text of many writers is lost", textWriters},
		{"the first texts are replaced if they are the same", replacedTexts},
		{"a replacement of other texts changes nothing", staleReplacements},
		{"a replacement is found out of date although the later texts are the same", staleRecord},
		{"a text is replaced by the same text", sameReplacement},
		{"many writers and replacements at once lose nothing", replacedWhileAppended},
		{"many users at once", manyTexts},
		{"deleted texts are gone", deletedTexts},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newStore) })
	}
}

// UnreadDamage tests that a store returns database errors for a user's list that damage
// has made unreadable, until Delete removes the list.
func UnreadDamage(t *testing.T, store module.UnreadStore, damage func(t *testing.T, user mxid.UserID)) {
	user, other := newUser(), newUser()
	damage(t, user)
	wantUnreadable := func(call string, err error) {
		t.Helper()
		if fault.KindOf(err) != fault.Database {
			t.Errorf("%s: got error %v, want one of kind %s", call, err, fault.Database)
		}
	}
	appended := store.Append(t.Context(), []module.UserText{{User: user, Text: "a"}, {User: other, Text: "a"}})
	wantUnreadable("Append", appended[0].Err)
	wantNoError(t, appended[1].Err)
	loaded := store.Load(t.Context(), []mxid.UserID{user, other})
	wantUnreadable("Load", loaded[user].Err)
	wantNoError(t, loaded[other].Err)
	replaced := store.Replace(t.Context(), []module.UnreadReplacement{{User: user, First: []string{"a"}, By: "b"}, {User: other, First: []string{"a"}, By: "b"}})
	wantUnreadable("Replace", replaced[0].Err)
	wantTexts(t, store, other, "b")
	wantNoError(t, store.Delete(t.Context(), user))
	wantTexts(t, store, user)
}

func appendTexts(t *testing.T, store module.UnreadStore, user mxid.UserID, texts ...string) (length int) {
	t.Helper()
	for _, text := range texts {
		result := store.Append(t.Context(), []module.UserText{{User: user, Text: text}})[0]
		wantNoError(t, result.Err)
		length = result.Value
	}
	return length
}

func loadTexts(ctx context.Context, store module.UnreadStore, user mxid.UserID) ([]string, error) {
	result := store.Load(ctx, []mxid.UserID{user})[user]
	return result.Value, result.Err
}

func wantTexts(t *testing.T, store module.UnreadStore, user mxid.UserID, want ...string) {
	t.Helper()
	got, err := loadTexts(t.Context(), store, user)
	wantNoError(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("got %.200q, want %.200q", got, want)
	}
}

func replaceTexts(ctx context.Context, store module.UnreadStore, user mxid.UserID, by string, first ...string) (done bool, err error) {
	result := store.Replace(ctx, []module.UnreadReplacement{{User: user, First: first, By: by}})[0]
	return result.Value, result.Err
}

func noTexts(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	wantTexts(t, newStore(t), newUser())
}

// oddTexts returns texts with bytes that an implementation may treat as special.
func oddTexts() []string {
	return []string{"", "\x00", "\n", "a\n1", "\xff\xfe", "ü", "'\"\\", strings.Repeat("x", 512<<10)}
}

func textsRoundTrip(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	hosts, user := [2]module.UnreadStore{newStore(t), newStore(t)}, newUser()
	for i, text := range oddTexts() {
		if length := appendTexts(t, hosts[i%2], user, text); length != i+1 {
			t.Errorf("text %d: got length %d", i, length)
		}
		for _, host := range hosts {
			wantTexts(t, host, user, oddTexts()[:i+1]...)
		}
	}
}

func textUsersApart(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	store, users := newStore(t), oddUsers()
	for i, user := range users {
		appendTexts(t, store, user, name(i))
	}
	loaded := store.Load(t.Context(), users)
	for i, user := range users {
		if got := loaded[user]; got.Err != nil || !slices.Equal(got.Value, []string{name(i)}) {
			t.Errorf("%q: got %q, error %v", user, got.Value, got.Err)
		}
	}
}

func refusedTextCalls(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	store, user := newStore(t), newUser()
	appendTexts(t, store, user, "a")
	wantRefused(t, user, func(ctx context.Context, user mxid.UserID) map[string]error {
		_, load := loadTexts(ctx, store, user)
		_, replace := replaceTexts(ctx, store, user, "b", "a")
		return map[string]error{
			"Append":  store.Append(ctx, []module.UserText{{User: user, Text: "b"}})[0].Err,
			"Load":    load,
			"Replace": replace,
			"Delete":  store.Delete(ctx, user),
		}
	})
	wantTexts(t, store, user, "a")
	mixed := store.Append(t.Context(), []module.UserText{{User: "no user", Text: "b"}, {User: user, Text: "b"}})
	if mixed[0].Err == nil {
		t.Error("a text for no user gave no error")
	}
	wantNoError(t, mixed[1].Err)
	wantTexts(t, store, user, "a", "b")
}

func textWriters(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	hosts, user := [2]module.UnreadStore{newStore(t), newStore(t)}, newUser()
	together(t, func(ctx context.Context, writer int) error {
		return persist(ctx, func() error {
			return hosts[writer%2].Append(ctx, []module.UserText{{User: user, Text: name(writer)}})[0].Err
		})
	})
	texts, err := loadTexts(t.Context(), hosts[0], user)
	wantNoError(t, err)
	wantAll(t, texts)
}

// wantAll checks that texts contains the text of each writer, at least once.
func wantAll(t *testing.T, texts []string) {
	t.Helper()
	for writer := range writers {
		if !slices.Contains(texts, name(writer)) {
			t.Errorf("%s is missing", name(writer))
		}
	}
}

func replacedTexts(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	hosts, user := [2]module.UnreadStore{newStore(t), newStore(t)}, newUser()
	all := append(oddTexts(), "last")
	appendTexts(t, hosts[0], user, all...)
	for i, test := range []struct {
		first, want []string
	}{
		{all[:len(all)-1], []string{"by 0", "last"}},
		{[]string{"by 0"}, []string{"by 1", "last"}},
		{[]string{"by 1", "last"}, []string{"by 2"}},
	} {
		done, err := replaceTexts(t.Context(), hosts[i%2], user, fmt.Sprint("by ", i), test.first...)
		wantNoError(t, err)
		if !done {
			t.Errorf("replacement %d was not done", i)
		}
		wantTexts(t, hosts[0], user, test.want...)
	}
	large := strings.Repeat("y", 512<<10)
	_, err := replaceTexts(t.Context(), hosts[0], user, large, "by 2")
	wantNoError(t, err)
	wantTexts(t, hosts[1], user, large)
}

func staleReplacements(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	store, user := newStore(t), newUser()
	stored := []string{"a", "b\n1", "c"}
	appendTexts(t, store, user, stored...)
	for name, first := range map[string][]string{
		"another first text": {"x", "b\n1"},
		"another last text":  {"a", "x"},
		"more texts":         {"a", "b\n1", "c", "d"},
		"another division":   {"a", "b", "1"},
		"the same bytes":     {"ab", "\n1"},
		"another order":      {"b\n1", "a"},
	} {
		done, err := replaceTexts(t.Context(), store, user, "by", first...)
		wantNoError(t, err)
		if done {
			t.Errorf("%s: it was replaced", name)
		}
		wantTexts(t, store, user, stored...)
	}
	if _, err := replaceTexts(t.Context(), store, user, "by"); err == nil {
		t.Error("a replacement of no texts gave no error")
	}
	if done, err := replaceTexts(t.Context(), store, newUser(), "by", "a"); done || err != nil {
		t.Errorf("a user without texts: done is %t, error %v", done, err)
	}
}

// staleRecord tests a second replacement of the first text of a list, while its second
// text is the same as before.
func staleRecord(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	store, user := newStore(t), newUser()
	appendTexts(t, store, user, "record 1", "repeated", "b")
	for i, first := range [][]string{{"record 1"}, {"record 2", "repeated", "b"}} {
		done, err := replaceTexts(t.Context(), store, user, fmt.Sprint("record ", i+2), first...)
		wantNoError(t, err)
		if !done {
			t.Fatalf("record %d did not replace texts", i+2)
		}
	}
	appendTexts(t, store, user, "repeated")
	done, err := replaceTexts(t.Context(), store, user, "record without b", "record 2", "repeated")
	wantNoError(t, err)
	if done {
		t.Error("a replacement of an earlier record was done")
	}
	wantTexts(t, store, user, "record 3", "repeated")
}

// sameReplacement tests the replacement of a record and a text by the same record, as
// for a text without effect.
func sameReplacement(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	store, user := newStore(t), newUser()
	appendTexts(t, store, user, "record")
	for range 2 {
		appendTexts(t, store, user, "a", "b")
		done, err := replaceTexts(t.Context(), store, user, "record", "record", "a")
		wantNoError(t, err)
		if !done {
			t.Error("the replacement was not done")
		}
		wantTexts(t, store, user, "record", "b")
		_, err = replaceTexts(t.Context(), store, user, "record", "record", "b")
		wantNoError(t, err)
	}
}

// replacedWhileAppended replaces all texts by one joined text, again and again, while
// writers append texts.
func replacedWhileAppended(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	hosts, user := [2]module.UnreadStore{newStore(t), newStore(t)}, newUser()
	together(t, func(ctx context.Context, writer int) error {
		host := hosts[writer%2]
		if err := persist(ctx, func() error {
			return host.Append(ctx, []module.UserText{{User: user, Text: name(writer)}})[0].Err
		}); err != nil {
			return err
		}
		texts, err := loadTexts(ctx, host, user)
		if err == nil {
			_, err = replaceTexts(ctx, host, user, strings.Join(texts, " "), texts...)
		}
		if fault.KindOf(err) == fault.Unavailable {
			return nil
		}
		return err
	})
	texts, err := loadTexts(t.Context(), hosts[0], user)
	wantNoError(t, err)
	wantAll(t, strings.Fields(strings.Join(texts, " ")))
}

func manyTexts(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	store := newStore(t)
	users := make([]mxid.UserID, 1200)
	texts := make([]module.UserText, len(users))
	for i := range users {
		users[i] = newUser()
		texts[i] = module.UserText{User: users[i], Text: fmt.Sprint(i)}
	}
	for round := range 2 {
		for i, result := range store.Append(t.Context(), texts) {
			if result.Err != nil || result.Value != round+1 {
				t.Fatalf("user %d: length %d, error %v", i, result.Value, result.Err)
			}
		}
	}
	var all []module.UnreadReplacement
	for i, text := range texts {
		all = append(all, module.UnreadReplacement{User: text.User, First: []string{text.Text, []string{text.Text, "other"}[i%2]}, By: "by " + text.Text})
	}
	for i, result := range replaceAll(t, store, all) {
		if result.Err != nil || result.Value != (i%2 == 0) {
			t.Fatalf("user %d: done is %t, error %v", i, result.Value, result.Err)
		}
	}
	loaded := store.Load(t.Context(), users)
	for i, text := range texts {
		want := []string{"by " + text.Text}
		if i%2 == 1 {
			want = []string{text.Text, text.Text}
		}
		if got := loaded[text.User]; got.Err != nil || !slices.Equal(got.Value, want) {
			t.Fatalf("user %d: got %q, error %v", i, got.Value, got.Err)
		}
	}
}

// replaceAll repeats replacements while the store is unavailable.
func replaceAll(t *testing.T, store module.UnreadStore, all []module.UnreadReplacement) (results []module.Result[bool]) {
	_ = persist(t.Context(), func() error {
		results = store.Replace(t.Context(), all)
		for _, result := range results {
			if result.Err != nil {
				return result.Err
			}
		}
		return nil
	})
	return results
}

func deletedTexts(t *testing.T, newStore func(*testing.T) module.UnreadStore) {
	hosts, user, other := [2]module.UnreadStore{newStore(t), newStore(t)}, newUser(), newUser()
	wantNoError(t, hosts[0].Delete(t.Context(), user))
	appendTexts(t, hosts[0], user, "a", "b")
	appendTexts(t, hosts[0], other, "c")
	wantNoError(t, hosts[1].Delete(t.Context(), user))
	wantTexts(t, hosts[0], user)
	wantTexts(t, hosts[0], other, "c")
	if length := appendTexts(t, hosts[0], user, "d"); length != 1 {
		t.Errorf("got length %d after the deletion", length)
	}
}
