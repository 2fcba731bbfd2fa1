package commit

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestAStampIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	s := Stamp{}.next(1, write{"A", 1, 1_700_000_000}).next(2, write{"B", 7, 1_700_000_001})
	const want = `{"version":2,"changes":2,"writers":{"A":[1,1700000000],"B":[7,1700000001]}}`
	text := string(s.AppendJSON(nil))
	if text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if got := ReadStamp(text); !got.Equal(s) || got.last("A") != 1 || got.last("B") != 7 || got.last("C") != 0 {
		t.Errorf("got %+v, want %+v", got, s)
	}
}

func TestWhatIsNoStampIsNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		``, `null`, `1`, `[]`, `{}`, `{"version":1}`, `{"writers":{}}`, `{"version":-1,"writers":{}}`,
		`{"version":1,"writers":[]}`, `{"version":1,"writers":{"A":1}}`, `{"version":1,"writers":{"A":[1,2,3]}}`,
		`{"version":1,"writers":{"A":["1","2"]}}`, `{"version":1e3,"writers":{}}`, `{"version":1,"writers":{}} x`,
		`{"version":1,"version":1,"writers":{}}`, `{"version":99999999999999999999,"writers":{}}`,
	} {
		if s := ReadStamp(text); !s.Equal(Stamp{}) {
			t.Errorf("%s: got %+v", text, s)
		}
	}
}

func TestAStampRemembersTheLastWriteOfEachWriterForAWhile(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000
	age := int64(writeAge / time.Second)
	s := Stamp{}.
		next(1, write{"old", 1, now - age - 1}).
		next(2, write{"young", 1, now - age}).
		next(3, write{"ahead", 1, now}).
		next(4, write{"same", 1, now - 5}).
		next(5, write{"same", 2, now})
	const want = `{"version":5,"changes":5,"writers":{"young":[1,%d],"ahead":[1,%d],"same":[2,%d]}}`
	if got := string(s.AppendJSON(nil)); got != fmt.Sprintf(want, now-age, now, now) {
		t.Errorf("got %s", got)
	}
}

func FuzzReadStamp(f *testing.F) {
	f.Add(`{"version":2,"writers":{"A":[1,1700000000],"B":[7,1700000001]}}`)
	f.Add(`{"version":2,"changes":1,"writers":{"A":[1,1700000000],"B2":[7,1700000001]}}`)
	for _, text := range []string{`,}}`, `"A":[1,2]}}`, `"A":[1,2],"A":[1,2]}}`, `"A":[1,2],}}`, `"A":[01,2]}}`, `"A":[1,2]"B":[1,2]}}`, `"A":[1,2,3]}}`, `"A":[,2]}}`} {
		f.Add(`{"version":2,"changes":1,"writers":{` + text)
	}
	f.Add(` {"writers":{"":[-1,0]},"x":[{}],"version":0} `)
	f.Fuzz(func(t *testing.T, text string) {
		s := ReadStamp(text)
		if careful := readStamp(text); !careful.Equal(s) {
			t.Errorf("%q is read as %+v, and with care as %+v", text, s, careful)
		}
		written := string(s.AppendJSON(nil))
		if again := ReadStamp(written); !again.Equal(s) {
			t.Errorf("%q is read as %+v, written as %s, read as %+v", text, s, written, again)
		}
		if strings.Contains(written, "null") && !strings.Contains(text, "null") {
			t.Errorf("written as %s", written)
		}
	})
}
