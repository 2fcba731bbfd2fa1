package strictjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/strictjson"
)

func TestDepthCountsNestedArraysAndObjects(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want int
	}{
		"nothing":                {"", 0},
		"a scalar":               {`"a"`, 0},
		"an empty array":         {`[]`, 1},
		"side by side":           {`[[],{},[[]]]`, 3},
		"a deep first element":   {`[[[1]],2]`, 3},
		"brackets in a string":   {`["[[[{{{"]`, 1},
		"brackets in a name":     {`{"[[[":1}`, 1},
		"an escaped quote":       {`["\"[[["]`, 1},
		"a backslash at the end": {`["\\",[]]`, 2},
		"many backslashes":       {`["\\\\\"[",[]]`, 2},
		"never closed":           {strings.Repeat(`[{"a":`, 50_000), 100_000},
		"cut within an escape":   {`["\`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strictjson.Depth(test.text); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func FuzzDepth(f *testing.F) {
	for _, seed := range []string{`[]`, `{"a":[{"b":"[\"{"}]}`, `"\\"`, `["\\\"",{}]`, `1`, `[[],[[]]]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			t.Skip("invalid JSON")
		}
		want := depthOf(value)
		// Of two values with one name, encoding/json drops the first, which may be deeper.
		if got := strictjson.Depth(text); got < want || got > want && isStrict(text) {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	})
}

func depthOf(value any) int {
	deepest := -1
	switch v := value.(type) {
	case []any:
		deepest = 0
		for _, element := range v {
			deepest = max(deepest, depthOf(element))
		}
	case map[string]any:
		deepest = 0
		for _, member := range v {
			deepest = max(deepest, depthOf(member))
		}
	}
	return deepest + 1
}
