package stored

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
)

// FuzzReadEvent checks that reading a written event gives the same event.
func FuzzReadEvent(f *testing.F) {
	for _, text := range []string{
		`{"type":"m.push_rules","content":{"global":{"override":[],"content":[],"room":[],"sender":[],"underride":[]}}}`,
		`{"x":1.0,"content":{"y":[1e400],"global":{"z":{},"room":[]}},"type":"m.push_rules"}`,
		`{"content":null}`, `{"content":{"global":[]}}`, `{}`, ``, `null`, `{"content":{"global":{}},"content":{}}`,
		`{"content":{"global":{"room":[{"rule_id":"a","default":false,"enabled":true,"actions":[null,{"x":{}}],"y":0.10}]}},"revision":{"version":1,"changes":1,"writers":{}}}`,
		eventStart + `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}` + eventRevision + `{"version":1,"changes":1,"writers":{}}}`,
		eventStart + `{"x":"` + eventRevision + `{}}"` + eventRevision + `{}}`, eventStart + `{}},"revision":1` + eventRevision + `2}`, eventStart + `{}` + eventRevision + `{}},"x":{}}`,
		`{"revision":null,"content":{"global":{"content":[{"rule_id":"","default":true,"enabled":false,"actions":[],"pattern":""}]}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ReadEvent(text)
		e.textVersion = 0 // readAnyEvent does not set it
		if any, anyErr := readAnyEvent(text); fmt.Sprint(any, anyErr) != fmt.Sprint(e, err) {
			t.Errorf("%q: ReadEvent gives %v, %v, readAnyEvent gives %v, %v", text, e, err, any, anyErr)
		}
		if err != nil {
			if fault.KindOf(err) != fault.Database {
				t.Errorf("%q: got error %v", text, err)
			}
			return
		}
		if !e.Found {
			return // never written back
		}
		written := e.Text(e.Revision)
		again, err := ReadEvent(written)
		again.textVersion = 0
		if any, anyErr := readAnyEvent(written); fmt.Sprint(any, anyErr) != fmt.Sprint(again, err) {
			t.Errorf("%q is written as %q: ReadEvent gives %v, %v, readAnyEvent gives %v, %v", text, written, again, err, any, anyErr)
		}
		if err != nil {
			t.Fatalf("%q is written as %q, which gives %v", text, written, err)
		}
		if twice := again.Text(again.Revision); twice != written {
			t.Errorf("%q is written as\n%q and then as\n%q", text, written, twice)
		}
		if !again.Rules.Equal(e.Rules) {
			t.Errorf("%q: the rules have changed", text)
		}
	})
}

// All hosts on a Redis must write the same bytes.
func TestEventHasAFixedForm(t *testing.T) {
	t.Parallel()
	const rules = `{"override":[],"content":[],"room":[{"rule_id":"!a:b","default":false,"enabled":true,"actions":["notify"]}],"sender":[],"underride":[]}`
	const revision = `{"version":3,"changes":2,"writers":{"A":1}}`
	for _, test := range []struct{ name, text, written, bare string }{
		{
			"without unknown members", `{"type":"m.push_rules","content":{"global":` + rules + `},"revision":` + revision + `}`,
			`{"type":"m.push_rules","content":{"global":` + rules + `},"revision":` + strings.TrimSuffix(revision, "}") + `,"digest":"bb2aa35b"}}`,
			`{"type":"m.push_rules","content":{"global":` + rules + `}}`,
		},
		{
			"with unknown members", `{"x":1.0,"revision":` + revision + `,"content":{"y":[],"global":` + rules + `}}`,
			`{"type":"m.push_rules","content":{"global":` + rules + `,"y":[]},"x":1.0,"revision":` + revision + `}`,
			`{"type":"m.push_rules","content":{"global":` + rules + `,"y":[]},"x":1.0}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e, err := ReadEvent(test.text)
			if err != nil || !e.Found || e.Version() != 3 {
				t.Fatalf("got %+v, %v", e, err)
			}
			if got := e.Text(e.Revision); got != test.written {
				t.Errorf("got %s, want %s", got, test.written)
			}
			if got := e.Text(Revision{}); got != test.bare {
				t.Errorf("got %s, want %s", got, test.bare)
			}
			if got := VersionAtEnd(test.written[len(test.written)-110:]); got != 3 {
				t.Errorf("at the end is version %d", got)
			}
			if got := LastRevision(test.written); !got.Equal(e.Revision) {
				t.Errorf("the last revision is %+v", got)
			}
			if again, err := ReadEvent(test.written); err != nil || again.Text(again.Revision) != test.written {
				t.Errorf("read again, it is %+v, %v", again, err)
			}
			for _, none := range []string{test.bare, `no JSON`, ``} {
				if VersionAtEnd(none) != 0 || LastRevision(none).Version != 0 {
					t.Errorf("%s has a revision", none)
				}
			}
		})
	}
}

func TestEveryEditInvalidatesTheDigest(t *testing.T) {
	t.Parallel()
	e := Event{Rules: pushrule.ServerDefault("@alice:example.org"), Found: true}
	text := e.Text(Revision{}.Next(3, Write{"A", 1}))
	if !hasDigest(text) {
		t.Fatalf("no digest: %s", text)
	}
	for i := range text {
		for _, part := range []string{"", "0", text[i:i+1] + "x"} {
			edited := text[:i] + part + text[i+1:]
			if edited != text && hasDigest(edited) {
				t.Errorf("the digest is right for %s", edited)
			}
		}
		if hasDigest(text[:i]) {
			t.Errorf("the digest is right for %s", text[:i])
		}
	}
	broken := strings.Replace(text, `"conditions":[`, `"conditions":{`, 1)
	if _, err := ReadEvent(broken); fault.KindOf(err) != fault.Database {
		t.Errorf("after an edit that breaks the rules: %v", err)
	}
	edited := strings.Replace(text, `"enabled":false`, `"enabled" :true`, 1)
	if got, err := ReadEvent(edited); err != nil || got.Rules.IsCanonical() || got.Version() != 3 {
		t.Errorf("after an edit: %+v, %v", got, err)
	}
}

func TestOnlyCanonicalEventsGetADigest(t *testing.T) {
	t.Parallel()
	const whole = `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}`
	for name, test := range map[string]struct {
		text string
		want bool
	}{
		"canonical":                        {`{"content":{"global":` + whole + `}}`, true},
		"an absent kind":                   {`{"content":{"global":{"room":[]}}}`, false},
		"a space":                          {`{"content":{"global":` + strings.Replace(whole, ":", ": ", 1) + `}}`, false},
		"a legacy rule":                    {`{"content":{"global":` + strings.Replace(whole, "[", `[{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"conditions":[],"actions":[]}`, 1) + `}}`, false},
		"an unknown member":                {`{"content":{"global":` + whole + `},"x":1}`, false},
		"an unknown member in the content": {`{"content":{"global":` + whole + `,"x":1}}`, false},
	} {
		e, err := ReadEvent(test.text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		revision := Revision{}.Next(3, Write{"A", 1})
		written := e.Text(revision)
		again, err := ReadEvent(written)
		if err != nil || !again.Revision.Equal(revision) || !again.Rules.Equal(e.Rules) || hasDigest(written) != test.want {
			t.Errorf("%s: written as %s, read as %+v, %v", name, written, again, err)
		}
	}
}

func BenchmarkReadEvent(b *testing.B) {
	e := Event{Rules: pushrule.ServerDefault("@alice:example.org"), Found: true}
	text := e.Text(Revision{}.Next(3, Write{"A", 1}))
	for name, read := range map[string]func(string) (Event, error){"trusting the digest": ReadEvent, "checking the rules": readAnyEvent} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := read(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
