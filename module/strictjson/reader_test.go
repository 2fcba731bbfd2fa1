package strictjson_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

func readWhole(text string) (string, error) {
	return strictjson.NewReader(text).Value()
}

func TestValueReturnsTheOriginalText(t *testing.T) {
	for name, text := range map[string]string{
		"white space inside":                 "{ \"a\" :\t[ 1 ,\r\n2 ] }",
		"needless escapes":                   `"\u0041\/\u00e9"`,
		"more digits than a float":           `[9007199254740993,1e400,0.10000000000000000001,-0,1E+2]`,
		"a surrogate pair":                   `"\ud83d\ude00"`,
		"NUL, escaped":                       `"\u0000"`,
		"U+2028 and U+FFFD":                  "\"\u2028\ufffd\"",
		"an empty name":                      `{"":0}`,
		"names that differ in case":          `{"kind":1,"KIND":2,"Kind":3}`,
		"the same name at different depths":  `{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}`,
		"names that differ in normalization": "{\"\u00e9\":1,\"e\u0301\":2}",
		"nesting up to the limit":            strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000),
		"null":                               `null`,
		"false":                              `false`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, around := range []string{"", " ", "\n\t\r "} {
				got, err := readWhole(around + text + around)
				if err != nil || got != text {
					t.Errorf("with %q around: got %.60q, %v", around, got, err)
				}
			}
		})
	}
}

var atByte = regexp.MustCompile(`^Not valid JSON: syntax error at byte \d+$`)

func TestInvalidJSONIsRefused(t *testing.T) {
	const end = "Not valid JSON: unexpected end"
	notJSON := func(text string) error { return fault.New(fault.NotJSON, text) }
	twice := func(path string) error { return fault.New(fault.BadJSON, "Key given twice: "+path) }

	for name, test := range map[string]struct {
		text string
		want error
	}{
		"an empty text":              {"", notJSON(end)},
		"only white space":           {" \n", notJSON(end)},
		"an unclosed object":         {`{`, notJSON(end)},
		"an unclosed array":          {`[1`, notJSON(end)},
		"an unclosed string":         {`"a`, notJSON(end)},
		"an unfinished escape":       {`"\u00`, notJSON(end)},
		"a cut literal":              {`nul`, notJSON(end)},
		"a cut number":               {`1e`, notJSON(end)},
		"a name without a value":     {`{"a":`, notJSON(end)},
		"a cut name":                 {`{"a`, notJSON(end)},
		"a second value":             {`{} {}`, notJSON("Not valid JSON: more than one value")},
		"a second value, joined":     {`{}[]`, notJSON("Not valid JSON: more than one value")},
		"a leading zero":             {`01`, notJSON("Not valid JSON: more than one value")},
		"a duplicate name":           {`{"a":1,"b":2,"a":1}`, twice("a")},
		"a duplicate, once escaped":  {`{"a":1,"\u0061":2}`, twice("a")},
		"a duplicate, slash escaped": {`{"/":1,"\/":2}`, twice("/")},
		"a duplicate empty name":     {`{"":1,"":2}`, twice("")},
		"a duplicate, nested":        {`{"a":{"b":{"c":1,"c":2}}}`, twice("a.b.c")},
		"a duplicate, in a list":     {`{"a":[0,{"c":1,"c":2}]}`, twice("a[1].c")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readWhole(test.text)
			if checked := strictjson.Check(test.text); !sameError(checked, err) {
				t.Errorf("the reader gives %v, Check gives %v", err, checked)
			}
			if !sameError(err, test.want) {
				t.Errorf("got  %v\nwant %v", err, test.want)
			}
		})
	}
	for _, text := range []string{
		`{}x`, "{}\x00", "\ufeff{}", "\xff\xfe{\x00}\x00", `[1,]`, `{"a" 1}`, `{a:1}`, `{}/**/`, `[{]}`, `NaN`, `.5`,
		`TRUE`, "[\f]", "\"a\nb\"", `"\x41"`, `"\ud800"`, `"\udc00"`, `{"\ud800":1}`, "\"\xff\"", "\"\xc0\xaf\"",
		"\"\xed\xa0\x80\"", "\"\xe2\x82\"",
		strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), strings.Repeat("[", 1<<20),
	} {
		_, err := readWhole(text)
		if fault.KindOf(err) != fault.NotJSON || !atByte.MatchString(err.Error()) || !sameError(strictjson.Check(text), err) {
			t.Errorf("%.30q: got %v of kind %v; Check gives %v", text, err, fault.KindOf(err), strictjson.Check(text))
		}
	}
}

func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("\u00e9", 10_000)
	for name, text := range map[string]string{
		"a long duplicate name":       `{"` + long + `":1,"` + long + `":2}`,
		"a broken value, a long name": `{"` + long + `":{"` + long + `":tru}}`,
		"a broken value, deep":        strings.Repeat("[", 9_000) + "!",
		"a lone surrogate":            `"\ud800` + long + `"`,
		"a wrong literal":             `tru` + long,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readWhole(text)
			if err == nil || len(err.Error()) > 300 || !utf8.ValidString(err.Error()) {
				t.Errorf("got %d bytes: %.400v", len(fmt.Sprint(err)), err)
			}
		})
	}
}

func TestErrorsRepeatNoValue(t *testing.T) {
	for name, text := range map[string]string{
		"before the fault":              `{"pushkey":"hunter2",}`,
		"after a lone surrogate":        `{"pushkey":"\ud800hunter2"}`,
		"after a raw control character": "{\"pushkey\":\"hunter2\n\"}",
		"after invalid UTF-8":           "{\"pushkey\":\"hunter2\xff\"}",
		"of the wrong kind":             `{"pushkey":"hunter2","n":{}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readWhole(text); err == nil || strings.Contains(err.Error(), "hunter") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func walk(r *strictjson.Reader, text string, paths *[]string) error {
	switch {
	case r.IsObject():
		return r.Object(func(string) error { return walk(r, text, paths) })
	case strings.HasPrefix(text[r.Offset():], "["):
		return r.Array(func() error { return walk(r, text, paths) })
	}
	*paths = append(*paths, r.Path())
	return r.Skip()
}

func TestPathNamesTheNextValue(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"the whole text":     {`1`, []string{""}},
		"a member":           {`{"a":1,"b":2}`, []string{"a", "b"}},
		"an element":         {`[1,2]`, []string{"[0]", "[1]"}},
		"nested":             {`{"rule":{"actions":["notify",{"value":1}]},"z":0}`, []string{"rule.actions[0]", "rule.actions[1].value", "z"}},
		"after empty values": {`{"a":{},"b":[],"c":[[],[{}],1],"d":1}`, []string{"c[2]", "d"}},
		"arrays in arrays":   {`[[[1]]]`, []string{"[0][0][0]"}},
		"a name with a dot":  {`{"a.b":{"c":1}}`, []string{"a.b.c"}},
		"an escaped name":    {`{"\u0061":1}`, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			if err := walk(strictjson.NewReader(test.text), test.text, &got); err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestErrorForTheWrongKindNamesTheField(t *testing.T) {
	type reader = strictjson.Reader
	ignore := func(_ any, err error) error { return err }
	reads := map[string]struct {
		read func(*reader) error
		want string
	}{
		"object":   {func(r *reader) error { return r.Object(func(string) error { return r.Skip() }) }, "an object"},
		"array":    {func(r *reader) error { return r.Array(r.Skip) }, "an array"},
		"string":   {func(r *reader) error { return ignore(r.String()) }, "a string"},
		"boolean":  {func(r *reader) error { return ignore(r.Bool()) }, "a boolean"},
		"integer":  {func(r *reader) error { return ignore(r.Integer()) }, "an integer"},
		"mismatch": {func(r *reader) error { return r.Mismatch("something else") }, "something else"},
	}
	values := map[string]string{
		"object": `{}`, "array": `[]`, "string": `""`, "boolean": `false`, "integer": `0`,
		"a fraction": `1.0`, "an exponent": `1e2`, "too large a number": `9223372036854775808`, "null": `null`,
	}
	for wanted, read := range reads {
		for name, value := range values {
			t.Run(wanted+" wanted, got "+name, func(t *testing.T) {
				var want, wantBare error
				if name != wanted {
					want = fault.New(fault.BadJSON, "a[1].b must be "+read.want)
					wantBare = fault.New(fault.BadJSON, "Must be "+read.want)
				}
				if err := read.read(strictjson.NewReader(value)); !reflect.DeepEqual(err, wantBare) {
					t.Errorf("as the whole text: got %v, want %v", err, wantBare)
				}
				r := strictjson.NewReader(`{"a":[0,{"b":` + value + `}]}`)
				err := r.Object(func(string) error {
					first := true
					return r.Array(func() error {
						if first {
							first = false
							return r.Skip()
						}
						return r.Object(func(string) error { return read.read(r) })
					})
				})
				if !reflect.DeepEqual(err, want) {
					t.Errorf("nested: got %v, want %v", err, want)
				}
			})
		}
		t.Run(wanted+" wanted, got nothing", func(t *testing.T) {
			if err := read.read(strictjson.NewReader("")); fault.KindOf(err) != fault.NotJSON {
				t.Errorf("got %v of kind %v, want NotJSON", err, fault.KindOf(err))
			}
		})
	}
}

func TestValueOfTheRightKindMayBeInvalid(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		read func(*strictjson.Reader) error
	}{
		"a string that is not UTF-8":     {"\"\xff\"", func(r *strictjson.Reader) error { _, err := r.String(); return err }},
		"a word that begins like true":   {`trux`, func(r *strictjson.Reader) error { _, err := r.Bool(); return err }},
		"a lone minus sign":              {`-x`, func(r *strictjson.Reader) error { _, err := r.Integer(); return err }},
		"objects without a comma":        {`[{} {}]`, func(r *strictjson.Reader) error { return r.Array(func() error { return r.Object(nil) }) }},
		"an array closed like an object": {`[1}`, func(r *strictjson.Reader) error { return r.Array(r.Skip) }},
		"an object closed like an array": {`{"a":1]`, func(r *strictjson.Reader) error { return r.Object(func(string) error { return r.Skip() }) }},
		"strings without a comma":        {`["x" 1]`, func(r *strictjson.Reader) error { return r.Array(func() error { _, err := r.String(); return err }) }},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.read(strictjson.NewReader(test.text)); fault.KindOf(err) != fault.NotJSON || !atByte.MatchString(err.Error()) {
				t.Errorf("got %v of kind %v", err, fault.KindOf(err))
			}
		})
	}
}

func TestIntegersHaveTheRangeOfInt64(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "-1": -1, "9007199254740993": 1<<53 + 1,
		"9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63,
	} {
		if got, err := strictjson.NewReader(text).Integer(); err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
}

func TestStringsAndBooleansAreDecoded(t *testing.T) {
	r := strictjson.NewReader(`["\u0041\n\ud83d\ude00\u0000", true, false]`)
	var got []any
	err := r.Array(func() error {
		if r.IsString() {
			s, err := r.String()
			got = append(got, s)
			return err
		}
		b, err := r.Bool()
		got = append(got, b)
		return err
	})
	if want := []any{"A\n\U0001f600\x00", true, false}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNullReadsOnlyNull(t *testing.T) {
	for text, want := range map[string]bool{"null": true, `"null"`: false, "0": false, "{}": false, "false": false} {
		r := strictjson.NewReader("[" + text + `,"end"]`)
		elements := 0
		err := r.Array(func() error {
			if elements++; elements == 2 {
				if next, err := r.String(); err != nil || next != "end" {
					t.Errorf("%s: the value was not read exactly once", text)
				}
				return nil
			}
			got, err := r.Null()
			if got != want || err != nil {
				t.Errorf("%s: got %t, %v", text, got, err)
			}
			if !want {
				err = r.Skip() // the value is still unread
			}
			return err
		})
		if err != nil || elements != 2 {
			t.Errorf("%s: %d elements, error %v", text, elements, err)
		}
	}
	if null, err := strictjson.NewReader("nuls").Null(); null && err == nil {
		t.Error("a word that begins like null is read as null")
	}
}

func TestMissingFieldsAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		text     string
		required []string
		want     error
	}{
		"none missing":            {`{"c":1,"b":null,"a":0}`, []string{"a", "b"}, nil},
		"none required":           {`{}`, nil, nil},
		"one missing":             {`{"a":1}`, []string{"a", "b"}, fault.New(fault.MissingParam, "Missing parameter: b")},
		"several, in given order": {`{"b":1}`, []string{"z", "b", "a"}, fault.New(fault.MissingParam, "Missing parameters: z, a")},
		"different case":          {`{"A":1}`, []string{"a"}, fault.New(fault.MissingParam, "Missing parameter: a")},
		"escaped name":            {`{"\u0061":1}`, []string{"a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := strictjson.NewReader(test.text)
			err := r.Object(func(string) error { return r.Skip() }, test.required...)
			if !sameError(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestMissingFieldsAreNamedWithTheirPath(t *testing.T) {
	r := strictjson.NewReader(`{"list":[{},{"x":1}]}`)
	err := r.Object(func(string) error {
		return r.Array(func() error {
			return r.Object(func(string) error { return r.Skip() }, "x", "y")
		})
	})
	if want := fault.New(fault.MissingParam, "Missing parameters: list[0].x, list[0].y"); !sameError(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestSixtyFourFieldsCanBeRequired(t *testing.T) {
	var names []string
	for i := range 64 {
		names = append(names, "f"+strconv.Itoa(i))
	}
	r := strictjson.NewReader(`{"` + strings.Join(names[:63], `":0,"`) + `":0}`)
	err := r.Object(func(string) error { return r.Skip() }, names...)
	if want := fault.New(fault.MissingParam, "Missing parameter: f63"); !sameError(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestLongPathIsCutBetweenCharacters(t *testing.T) {
	for _, shift := range []string{"", "x", "xx"} {
		path := shift + strings.Repeat("\u20ac", 100)
		text := strictjson.WrongShape(path, "a string").Error()
		shown, found := strings.CutSuffix(text, "… must be a string")
		if !found || !utf8.ValidString(text) || !strings.HasPrefix(path, shown) || len(shown) < 126 || len(shown) > 128 {
			t.Errorf("got %q", text)
		}
	}
}

func TestKeepCollectsMembersInOrder(t *testing.T) {
	r := strictjson.NewReader(`{"b": [ 1 ],"\u0061":1e400}`)
	var got []strictjson.Member
	err := r.Object(func(name string) (err error) {
		got, err = r.Keep(got, name)
		return err
	})
	if want := []strictjson.Member{{"b", "[ 1 ]"}, {"a", "1e400"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestSinceReturnsTheTextReadSinceAnOffset(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"the only member":   {`{"x":{"a": 1 }}`, `{"a": 1 }`},
		"space around":      {"{ \"x\" \n:\t { } , \"y\":[]}", `{ }`},
		"not the first":     {`{"w":[0] , "x":"v,:" }`, `"v,:"`},
		"in another object": {`{"w":{"x":null}}`, `null`},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			r := strictjson.NewReader(test.text)
			var find func(string) error
			find = func(member string) error {
				offset := r.Offset()
				if member != "x" && r.IsObject() {
					return r.Object(find)
				}
				err := r.Skip()
				if member == "x" {
					got = r.Since(offset)
				}
				return err
			}
			if err := find(""); err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
	t.Run("the whole text", func(t *testing.T) {
		r := strictjson.NewReader(" \n[1] ")
		offset := r.Offset()
		if err := r.Skip(); err != nil || r.Since(offset) != "[1]" {
			t.Errorf("got %q, %v", r.Since(offset), err)
		}
	})
}

func TestErrorOfACallbackIsReturned(t *testing.T) {
	want := io.ErrClosedPipe
	r := strictjson.NewReader(`{"a":[1]}`)
	err := r.Object(func(string) error { return r.Array(func() error { return want }) })
	if err != want {
		t.Errorf("got %v", err)
	}
}

// FuzzValue compares the reader with encoding/json and the checks in isStrict.
func FuzzValue(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2.5e-3,"x\u0041\ud83d\ude00",null,true]}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `"\\ud800"`, "\"\xff\"",
		`[{"a":1},{"a":1}]`, `{} {}`, "\ufeff1", `[1,]`, "{\"\u00e9\":{\"\":-0}}", `[{"a":[{"b":1,"b":2}]}]`, "", " 1 ",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := readWhole(text)
		if accepted, want := err == nil, isStrict(text); accepted != want {
			t.Fatalf("%q: accepted %t, want %t (%v)", text, accepted, want, err)
		}
		if checked := strictjson.Check(text); !sameError(checked, err) {
			t.Errorf("%q: the reader gives %v, Check gives %v", text, err, checked)
		}
		if err == nil && got != strings.Trim(text, " \t\r\n") {
			t.Errorf("%q: got %q", text, got)
		}
		var paths []string
		r := strictjson.NewReader(text)
		walked := walk(r, text, &paths)
		if fault.KindOf(walked) != fault.KindOf(err) {
			t.Errorf("%q: read as one value %v, piece by piece %v", text, err, walked)
		}
	})
}

// isStrict decides without the reader's parser whether the reader must accept a text.
func isStrict(text string) bool {
	if !json.Valid([]byte(text)) || !utf8.ValidString(text) || loneSurrogate(text) {
		return false
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	return uniqueNames(dec)
}

var (
	escapes       = regexp.MustCompile(`\\(u[0-9a-fA-F]{4}|.)`)
	surrogatePair = regexp.MustCompile(`\(u[dD][89abAB]..\)\(u[dD][c-fC-F]..\)`)
	surrogate     = regexp.MustCompile(`\(u[dD][89a-fA-F]..\)`)
)

// loneSurrogate reports whether a valid text has an escaped lone surrogate.
func loneSurrogate(text string) bool {
	text = strings.NewReplacer("(", "_", ")", "_").Replace(text)
	text = escapes.ReplaceAllString(text, "($1)")
	return surrogate.MatchString(surrogatePair.ReplaceAllString(text, ""))
}

// uniqueNames reads one value.
func uniqueNames(dec *json.Decoder) bool {
	token, _ := dec.Token()
	delim, _ := token.(json.Delim)
	unique, seen := true, map[string]bool{}
	for (delim == '{' || delim == '[') && dec.More() {
		if delim == '{' {
			name, _ := dec.Token()
			unique = unique && !seen[name.(string)]
			seen[name.(string)] = true
		}
		unique = uniqueNames(dec) && unique
	}
	if delim == '{' || delim == '[' {
		_, _ = dec.Token()
	}
	return unique
}

func sameError(a, b error) bool { return reflect.DeepEqual(a, b) }
