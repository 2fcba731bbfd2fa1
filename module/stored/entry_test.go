package stored

import (
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
)

func TestEntryHasAFixedForm(t *testing.T) {
	t.Parallel()
	e := Entry{
		pusher.Entry{
			Taken:   1763716975000000,
			Holders: []pusher.Holder{{User: alice, Number: 1763716975000000}, {User: "@b\"ob:example.org", Number: 1763716975000002}},
			Losers:  []pusher.Holder{{User: "@carol:example.org", Number: 2}},
		},
		Revision{Version: 3, Changes: 2, Writes: []Write{{"A", 1}}},
	}
	const want = `{"taken":1763716975000000,"holders":{"@alice:example.org":1763716975000000,"@b\"ob:example.org":1763716975000002},` +
		`"losers":{"@carol:example.org":2},"revision":{"version":3,"changes":2,"writers":{"A":1}}}`
	if got := string(e.AppendJSON(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got, err := ReadEntry(want)
	if err != nil || !got.Entry.Equal(e.Entry) || !got.Revision.Equal(e.Revision) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, want := string(Entry{}.AppendJSON(nil)), `{"taken":0,"holders":{},"losers":{},"revision":{"version":0,"changes":0,"writers":{}}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// entries are damaged, except the first two.
var entries = []string{
	`{"taken":1,"holders":{"@alice:example.org":1},"losers":{"@bob:example.org":2},"revision":{"version":1,"changes":1,"writers":{}}}`,
	`{"taken":0,"holders":{},"losers":{}}`, `{"holders":{},"losers":{}}`, `{"taken":0,"losers":{}}`, `{"taken":-1,"holders":{},"losers":{}}`,
	`{"taken":0,"holders":{"@a:b":0},"losers":{}}`, `{"taken":0,"holders":{"@a:b":"1"},"losers":{}}`, `{"taken":0,"holders":{"@a:b":1},"losers":{"@a:b":2}}`,
	`{"taken":0,"holders":[],"losers":{}}`, `{"claims":{"1":"@a:b"},"revision":{"version":1,"changes":1,"writers":{}}}`, `{}`, `[]`, ``,
}

func TestADamagedEntryIsUnreadable(t *testing.T) {
	t.Parallel()
	for i, text := range entries {
		if _, err := ReadEntry(text); (fault.KindOf(err) == fault.Database) != (i > 1) || err != nil && i < 2 {
			t.Errorf("%q: got error %v", text, err)
		}
	}
}

// FuzzReadEntry checks that reading a written entry gives the same entry.
func FuzzReadEntry(f *testing.F) {
	for _, text := range entries {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read, err := ReadEntry(text)
		if err != nil {
			if fault.KindOf(err) != fault.Database {
				t.Errorf("%q: got error %v", text, err)
			}
			return
		}
		written := string(read.AppendJSON(nil))
		again, err := ReadEntry(written)
		if err != nil {
			t.Fatalf("%q is written as %q, which gives %v", text, written, err)
		}
		if !read.Entry.Equal(again.Entry) || !read.Revision.Equal(again.Revision) {
			t.Errorf("%q: read %+v, after writing %+v", text, read, again)
		}
	})
}
