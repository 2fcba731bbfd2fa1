package pusher

import (
	"reflect"
	"strings"
	"testing"
)

// FuzzReadWritten holds the reading of what the service wrote against that of any
// text.
func FuzzReadWritten(f *testing.F) {
	const usual = `{"pushkey":"k","kind":"http","app_id":"a","app_display_name":"A","device_display_name":"D","lang":"en",` +
		`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"},"profile_tag":"x","y":[1.0],"created":7,"device_id":"X","claim":{"number":3,"removes":2}}`
	f.Add(usual)
	for _, change := range [][2]string{
		{`"x"`, `null`}, {`"x"`, `1`}, {`"number":3,`, ``}, {`"removes":2`, `"removes":2,"z":1`}, {`"removes":2`, `"removes":2,"set_at":5`}, {`"removes":2`, `"set_at":5`}, {`7`, `7.0`}, {`7`, `-0`}, {`"k"`, `"\u006b"`},
		{`"lang"`, `"la\u006eg"`}, {`"lang":"en",`, ``}, {`{"url"`, `[{"url"`}, {`"en"`, `null`}, {`"claim":`, `"claim":1,"c":`}, {`"y"`, `"lang"`}, {`7`, `99999999999999999999`},
	} {
		f.Add(strings.Replace(usual, change[0], change[1], 1))
	}
	f.Fuzz(func(t *testing.T, text string) {
		written, ok := readWritten(text)
		any, err := readStored(text)
		if ok && (err != nil || !reflect.DeepEqual(written, any)) {
			t.Errorf("%q: read as %+v, and in any form as %+v, %v", text, written, any, err)
		}
	})
}

func TestWhatTheServiceWritesIsReadQuickly(t *testing.T) {
	t.Parallel()
	p := Pusher{Key: Key{"app \"", "key\n"}, Kind: HTTP, Lang: "en", Data: `{}`, Device: "D", Created: 1, Claim: Claim{7, 3}, SetAt: 9}
	if got, ok := readWritten(string(p.AppendStored(nil))); !ok || !reflect.DeepEqual(got, p) {
		t.Errorf("got %+v, %t", got, ok)
	}
}
