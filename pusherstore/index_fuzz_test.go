package pusherstore

import (
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
)

// FuzzReadClaims holds that stored claims are either read or refused as
// unreadable, and that what is read is written so that it reads the same.
func FuzzReadClaims(f *testing.F) {
	for _, text := range []string{
		`{"claims":{"1763716975000000":"@alice:example.org","2":"@bob:example.org"},"commit":{"version":1,"changes":1,"writers":{}}}`,
		`{"claims":{}}`, `{"claims":{"x":"@a:b"}}`, `{"claims":{"1":"@a:b","01":"@a:b"}}`, `{"claims":{"1":null}}`, `{}`, `[]`, ``,
		`{"claims":{"-1":"@a:b","9223372036854775808":"@a:b"}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read, err := parseClaims(text)
		if err != nil {
			if fault.KindOf(err) != fault.Database {
				t.Errorf("%q: got error %v", text, err)
			}
			return
		}
		change, err := read.Change(read.Value())
		if err != nil {
			t.Fatal(err)
		}
		written := string(change.Args(commit.Stamp{Version: 1})[0].([]byte))
		again, err := parseClaims(written)
		if err != nil {
			t.Fatalf("%q is written as %q, which gives %v", text, written, err)
		}
		before, after := read.Value(), again.Value()
		if !slices.Equal(before.Owners(), after.Owners()) {
			t.Errorf("%q: read %v, after writing %v", text, before.Owners(), after.Owners())
		}
	})
}
