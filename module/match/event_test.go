package match

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/strictjson"
)

func (e *Event) get(k *key) (v value, elements []value, found bool) {
	p := e.find(k)
	if p == nil {
		return value{}, nil, false
	}
	v = p.value
	if v.kind == array {
		v.number = 0
	}
	return v, e.elementsOf(p), true
}

func expected(v any) (value, []value) {
	switch v := v.(type) {
	case nil:
		return value{kind: null}, nil
	case bool:
		if v {
			return value{kind: truth}, nil
		}
		return value{kind: falsehood}, nil
	case string:
		return value{kind: textual, text: v}, nil
	case json.Number:
		return readNumber(string(v)), nil
	case []any:
		var elements []value
		for _, element := range v {
			if scalar, _ := expected(element); scalar.isScalar() {
				elements = append(elements, scalar)
			}
		}
		if len(elements) > manyElements {
			slices.SortFunc(elements, value.compare)
		}
		return value{kind: array}, elements
	}
	return value{kind: compound}, nil
}

func escapePath(names []string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = strings.NewReplacer(`\`, `\\`, ".", `\.`).Replace(name)
	}
	return strings.Join(escaped, ".")
}

func compare(t *testing.T, e *Event, path []string, object map[string]any) int {
	n := len(object)
	for name, member := range object {
		path := append(path[:len(path):len(path)], name)
		k := parseKey(escapePath(path))
		if !reflect.DeepEqual(k.parts, path) {
			t.Errorf("%q became the key of %q", path, k.parts)
		}
		want, wantElements := expected(member)
		got, elements, found := e.get(&k)
		if !found || got != want || len(elements)+len(wantElements) > 0 && !reflect.DeepEqual(elements, wantElements) {
			t.Errorf("%q: got %+v %+v, %t, want %+v %+v", path, got, elements, found, want, wantElements)
		}
		if inner, isObject := member.(map[string]any); isObject {
			n += compare(t, e, path, inner)
		}
	}
	return n
}

// FuzzReadEvent compares with encoding/json.
func FuzzReadEvent(f *testing.F) {
	for _, seed := range []string{
		`{"type":"m.room.message","content":{"body":"Hi","m.mentions":{"user_ids":["@a:b"],"room":true},"m.relates_to":{"rel_type":"m.replace"}}}`,
		`{"content":{"a.b":{"c\\d":[1,"x",null,[2],{"y":3},true,1.5]},"":{"":{"":0}}},"state_key":""}`, `{"\u0063ontent":{"b\u006fdy":"\u00e9\n"}}`,
		`{"a":9007199254740991,"b":-9007199254740992,"c":1e3,"d":-0,"e":1E400,"f":12345678901234567890}`, `[]`, `{}`, ``, `{"a":1,"a":2}`, `{"a":"\ud800"}`,
		`{"a":{"b":{}},"b":{"a":{}},"c":[[]],"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1,"p":1,"q":1,"r":1,"s":1,"t":1,"u":1,"v":1,"w":1}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ReadEvent(text)
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var object map[string]any
		isObject := strictjson.Valid(text) && decoder.Decode(&object) == nil && object != nil
		if (err == nil) != isObject {
			t.Fatalf("%q: %v", text, err)
		}
		if err == nil {
			if n := compare(t, e, nil, object); n != len(e.properties) {
				t.Errorf("%q: %d properties, want %d", text, len(e.properties), n)
			}
		}
	})
}

// FuzzKey compares with the escapes of the specification, replaced one after the other.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"content.body", `content.m\.relates_to`, `content.m\\foo`, `\x`, `a\`, `a\\`, `a\\.b`, `a\\\.b`, "", ".", "..", `\.`, "é.日"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		const dot, backslash = "\xff\x01", "\xff\x02" // not UTF-8
		if strings.Contains(path, "\xff") {
			return
		}
		var want []string
		hidden := strings.NewReplacer(`\\`, backslash, `\.`, dot).Replace(path)
		for part := range strings.SplitSeq(hidden, ".") {
			want = append(want, strings.NewReplacer(backslash, `\`, dot, ".").Replace(part))
		}
		k := parseKey(path)
		if !reflect.DeepEqual(k.parts, want) {
			t.Errorf("%q: got %q, want %q", path, k.parts, want)
		}
		if again := parseKey(escapePath(k.parts)); !reflect.DeepEqual(again, k) {
			t.Errorf("%q: read again %+v, want %+v", path, again, k)
		}
	})
}

func TestNumbersAreExact(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]value{
		"0": {kind: integer}, "-0": {kind: integer}, "0.0": {kind: integer}, "-0e99999999999": {kind: integer},
		"1": {kind: integer, number: 1}, "-17": {kind: integer, number: -17}, "1.0": {kind: integer, number: 1},
		"1e10": {kind: integer, number: 1e10}, "12.50e1": {kind: integer, number: 125}, "100e-2": {kind: integer, number: 1},
		"9007199254740991": {kind: integer, number: 1<<53 - 1}, "-9007199254740991": {kind: integer, number: -(1<<53 - 1)},
		"9007199254740992": {}, "-9007199254740992": {}, "90071992547409910": {}, "1e16": {}, "1e99999999999": {}, "1.5": {}, "1e-1": {},
		"1e-99999999999": {}, "0.1": {}, "18446744073709551617": {}, "9.007199254740991e15": {kind: integer, number: 1<<53 - 1},
	} {
		if want.kind == compound {
			want.text = number
		}
		if got := readNumber(number); got != want {
			t.Errorf("%s: got %+v, want %+v", number, got, want)
		}
	}
}
