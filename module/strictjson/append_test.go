package strictjson_test

import (
	"encoding/json"
	"testing"

	"github.com/pushfx/pushfx/module/strictjson"
)

func TestAppendStringEscapesOnlyWhatJSONRequires(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"an empty string":        {"", `""`},
		"special in HTML":        {"<a href='x'>&\u2028\u2029", "\"<a href='x'>&\u2028\u2029\""},
		"quotes and backslashes": {`"\/`, `"\"\\/"`},
		"control characters":     {"\b\f\n\r\t\x00\x1f", `"\b\f\n\r\t\u0000\u001f"`},
		"DEL and C1":             {"\x7f\u0085", "\"\x7f\u0085\""},
		"beyond the basic plane": {"\U0001f600", "\"\U0001f600\""},
		"invalid UTF-8":          {"a\xffb\xc3", "\"a\ufffdb\ufffd\""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(strictjson.AppendString([]byte("x"), test.text)); got != "x"+test.want {
				t.Errorf("got %s, want x%s", got, test.want)
			}
		})
	}
}

func FuzzAppendString(f *testing.F) {
	for _, seed := range []string{"", `"\`, "a\xff\xfe", "\u2028<>&", "\x00\x1f\x7f", "\xed\xa0\x80"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		quoted := strictjson.AppendString(nil, text)
		want := string([]rune(text)) // invalid bytes become U+FFFD
		var theirs string
		if err := json.Unmarshal(quoted, &theirs); err != nil || theirs != want {
			t.Errorf("encoding/json reads %s as %q, %v, want %q", quoted, theirs, err, want)
		}
		if ours, err := strictjson.NewReader(string(quoted)).String(); err != nil || ours != want {
			t.Errorf("the reader reads %s as %q, %v, want %q", quoted, ours, err, want)
		}
	})
}

func TestMembersAndArraysAreJoinedWithCommas(t *testing.T) {
	for name, test := range map[string]struct {
		members []strictjson.Member
		array   []string
		want    string
	}{
		"nothing":            {nil, nil, `{"list":[]}`},
		"one of each":        {[]strictjson.Member{{"a", `{}`}}, []string{"1"}, `{"a":{},"list":[1]}`},
		"several":            {[]strictjson.Member{{"a", `"{"`}, {"b", `[ ]`}}, []string{"1", "{ }"}, `{"a":"{","b":[ ],"list":[1,{ }]}`},
		"a name ending in {": {[]strictjson.Member{{"{", `1e400`}, {`"`, "2"}}, nil, `{"{":1e400,"\"":2,"list":[]}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := strictjson.AppendMembers([]byte{'{'}, test.members)
			b = append(strictjson.AppendArray(strictjson.AppendMember(b, "list"), test.array), '}')
			if string(b) != test.want || !json.Valid(b) {
				t.Errorf("got %s, want %s", b, test.want)
			}
		})
	}
}
