package rulestore

import (
	"fmt"
	"testing"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
)

// FuzzReadEvent holds that whatever is stored is either read or refused as
// unreadable, and that what is read is written so that it reads the same:
// nothing in it is lost but the order of its members.
func FuzzReadEvent(f *testing.F) {
	for _, text := range []string{
		`{"type":"m.push_rules","content":{"global":{"override":[],"content":[],"room":[],"sender":[],"underride":[]}}}`,
		`{"x":1.0,"content":{"y":[1e400],"global":{"z":{},"room":[]}},"type":"m.push_rules"}`,
		`{"content":null}`, `{"content":{"global":[]}}`, `{}`, ``, `null`, `{"content":{"global":{}},"content":{}}`,
		`{"content":{"global":{"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[null,{"x":{}}],"y":0.10}]}},"commit":{"version":1,"changes":1,"writers":{}}}`,
		opening + `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}` + middle + `{"version":1,"changes":1,"writers":{}}}`,
		opening + `{"x":"` + middle + `{}}"` + middle + `{}}`, opening + `{}},"commit":1` + middle + `2}`, opening + `{}` + middle + `{}},"x":{}}`,
		`{"commit":null,"content":{"global":{"content":[{"rule_id":"","default":true,"enabled":false,"actions":[],"pattern":""}]}}}`,
	} {
		f.Add(text)
	}
	cache := pushrule.NewReadCache()
	f.Fuzz(func(t *testing.T, text string) {
		e, err := readEvent(text, cache)
		e.last, e.foreign = commit.Stamp{}, 0 // the other reader does not tell them
		if any, anyErr := readAnyEvent(text); fmt.Sprint(any, anyErr) != fmt.Sprint(e, err) {
			t.Errorf("%q: read as %v, %v, and in any form as %v, %v", text, e, err, any, anyErr)
		}
		if err != nil {
			if fault.KindOf(err) != fault.Database {
				t.Errorf("%q: got error %v", text, err)
			}
			return
		}
		if !e.found {
			return // it is never written back
		}
		written := e.with(e.stamp)
		again, err := readEvent(written, cache)
		if err != nil {
			t.Fatalf("%q is written as %q, which gives %v", text, written, err)
		}
		if twice := again.with(again.stamp); twice != written {
			t.Errorf("%q is written as\n%q and then as\n%q", text, written, twice)
		}
		if !again.rules.Equal(e.rules) {
			t.Errorf("%q: the rules have changed", text)
		}
	})
}
