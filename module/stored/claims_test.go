package stored

import (
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
)

func TestEntryHasAFixedForm(t *testing.T) {
	t.Parallel()
	e := Entry{
		Claims:   pusher.NewClaims(pusher.Owner{User: alice, Claim: 1763716975000000}, pusher.Owner{User: "@b\"ob:example.org", Claim: 2}),
		Revision: Revision{Version: 3, Changes: 2, Writes: []Write{{"A", 1}}},
	}
	const want = `{"claims":{"1763716975000000":"@alice:example.org","2":"@b\"ob:example.org"},` +
		`"revision":{"version":3,"changes":2,"writers":{"A":1}}}`
	if got := string(e.AppendJSON(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got, err := ReadEntry(want)
	if err != nil || !slices.Equal(got.Claims.Owners(), e.Claims.Owners()) || !got.Revision.Equal(e.Revision) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, want := string(Entry{}.AppendJSON(nil)), `{"claims":{},"revision":{"version":0,"changes":0,"writers":{}}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzReadEntry checks that reading a written entry gives the same entry.
func FuzzReadEntry(f *testing.F) {
	for _, text := range []string{
		`{"claims":{"1763716975000000":"@alice:example.org","2":"@bob:example.org"},"revision":{"version":1,"changes":1,"writers":{}}}`,
		`{"claims":{}}`, `{"claims":{"x":"@a:b"}}`, `{"claims":{"1":"@a:b","01":"@a:b"}}`, `{"claims":{"1":null}}`, `{}`, `[]`, ``,
		`{"claims":{"-1":"@a:b","9223372036854775808":"@a:b"}}`,
	} {
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
		if !slices.Equal(read.Claims.Owners(), again.Claims.Owners()) || !read.Revision.Equal(again.Revision) {
			t.Errorf("%q: read %+v, after writing %+v", text, read, again)
		}
	})
}
