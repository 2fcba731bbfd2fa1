package strictjson_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/strictjson"
)

func walked(t *testing.T, w *strictjson.Walker) any {
	switch w.Next() {
	case '{':
		object := map[string]any{}
		for name := range w.Object() {
			object[name] = walked(t, w)
		}
		return object
	case '[':
		list := []any{}
		for i := range w.Array() {
			if i != len(list) {
				t.Errorf("element %d is the %dth", i, len(list))
			}
			list = append(list, walked(t, w))
		}
		return list
	case '"':
		return w.String()
	}
	var scalar any
	if err := json.Unmarshal([]byte(w.Skip()), &scalar); err != nil {
		t.Error(err)
	}
	return scalar
}

func skipped(w strictjson.Walker) (texts map[string]json.RawMessage) {
	texts = map[string]json.RawMessage{}
	for name := range w.Object() {
		start := w
		texts[name] = json.RawMessage(start.Skip())
	}
	return texts
}

// FuzzWalk compares a walker with encoding/json, and checks that it ends in invalid
// texts.
func FuzzWalk(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-2.5e3,true,null,"x\"y\\"],"b":{"":{}},"c":[]}`, " [ { } , \"\\u00e9\\ud83d\\ude00\" ,\t[ ] ]\n", `"\\"`, `7`, `{}`, ``,
		`{"a":`, `[1,,2]`, `{"a" 1}`, `[}`, `{]`, `"`, `{"a":"b`, `]`, `{{`, `[[[`, `{"a":1,"a":2}`, "\"\xff\"", `{"\\":"\\\""}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		readable := strictjson.NewReader(text).Skip() == nil
		if valid := strictjson.Valid(text); valid != readable || valid != (strictjson.Check(text) == nil) {
			t.Fatalf("%q: Valid is %t, readable %t", text, valid, readable)
		} else if !valid {
			walkInvalid(strictjson.Walk(text))
			return
		}
		var want any
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			if strings.Contains(err.Error(), "number") || strings.Contains(err.Error(), "depth") {
				return // out of range for a float64
			}
			t.Fatalf("%q: %v", text, err)
		}
		w := strictjson.Walk(text)
		if got := walked(t, &w); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
		whole := strictjson.Walk(text)
		if got := whole.Skip(); got != strings.Trim(text, " \t\r\n") {
			t.Errorf("%q: skipped %q", text, got)
		}
		if object, ok := want.(map[string]any); ok {
			for name, member := range skipped(strictjson.Walk(text)) {
				var got any
				if err := json.Unmarshal(member, &got); err != nil || !reflect.DeepEqual(got, object[name]) {
					t.Errorf("%q: %s is %s, %v", text, name, member, err)
				}
			}
		}
	})
}

func walkInvalid(w strictjson.Walker) {
	object, list, leap := w, w, w
	for range object.Object() {
		inner := object
		for range inner.Array() {
		}
	}
	for range list.Array() {
		for name := range list.Object() {
			_ = name
		}
	}
	_, _ = leap.String(), leap.Skip()
}

func TestLoopOverAWalkerMayEndEarly(t *testing.T) {
	t.Parallel()
	w := strictjson.Walk(`{"a":[1,2,3],"b":{"c":4}}`)
	var names []string
	for name := range w.Object() {
		names = append(names, name)
		if name == "b" {
			break
		}
	}
	if strings.Join(names, "") != "ab" || w.Next() != '{' || w.Offset() != len(`{"a":[1,2,3],"b":`) {
		t.Errorf("got %v, at offset %d", names, w.Offset())
	}
}
