package stored

import (
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

func TestEntryHasAFixedForm(t *testing.T) {
	t.Parallel()
	e := Entry{
		pusher.Entry{Last: 1763716975000002, Taken: 1763716975000000, By: alice, Users: []mxid.UserID{"@b\"ob:example.org", alice}, Address: true},
		Revision{Version: 3, Changes: 2, Writes: []Write{{"A", 1}}},
	}
	const want = `{"form":2,"last":1763716975000002,"taken":1763716975000000,"by":"@alice:example.org","users":["@b\"ob:example.org","@alice:example.org"],` +
		`"address":true,"revision":{"version":3,"changes":2,"writers":{"A":1}}}`
	if got := string(e.AppendJSON(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got, err := ReadEntry(want)
	if err != nil || !got.Entry.Equal(e.Entry) || !got.Revision.Equal(e.Revision) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, want := string(Entry{}.AppendJSON(nil)), `{"form":2,"last":0,"taken":0,"by":"","users":[],"revision":{"version":0,"changes":0,"writers":{}}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// entries are damaged, except the first two.
var entries = []string{
	`{"form":2,"last":2,"taken":1,"by":"@alice:example.org","users":["@bob:example.org"],"revision":{"version":1,"changes":1,"writers":{}}}`,
	`{"form":2,"last":0,"taken":0,"by":"","users":[],"address":true}`, `{"last":0,"taken":0,"by":"","users":[]}`,
	`{"form":2,"taken":0,"by":"","users":[]}`, `{"form":2,"last":0,"by":"","users":[]}`, `{"form":2,"last":0,"taken":0,"users":[]}`,
	`{"form":2,"last":0,"taken":0,"by":""}`, `{"form":2,"last":0,"taken":-1,"by":"","users":[]}`, `{"form":2,"last":1,"taken":2,"by":"","users":[]}`,
	`{"form":2,"last":"1","taken":0,"by":"","users":[]}`, `{"form":2,"last":1,"taken":0,"by":1,"users":[]}`, `{"form":2,"last":1,"taken":0,"by":"","users":{}}`,
	`{"form":2,"last":1,"taken":0,"by":"","users":[1]}`, `{"form":2,"last":1,"taken":0,"by":"","users":[],"address":1}`,
	`{"claims":{"1":"@a:b"},"revision":{"version":1,"changes":1,"writers":{}}}`, `{}`, `[]`, ``,
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
