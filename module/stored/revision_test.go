package stored

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/strictjson"
)

func TestARevisionIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	r := Revision{}.Next(1, Write{"A", 1, 1_700_000_000}).Next(2, Write{"B", 7, 1_700_000_001})
	const want = `{"version":2,"changes":2,"writers":{"A":[1,1700000000],"B":[7,1700000001]}}`
	text := string(r.AppendJSON(nil))
	if text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if got := ReadRevision(text); !got.Equal(r) || got.Last("A") != 1 || got.Last("B") != 7 || got.Last("C") != 0 {
		t.Errorf("got %+v, want %+v", got, r)
	}
}

// A later form may say more of a write. Its hosts and today's still find their
// writes in what the others have written.
func TestMembersThatALaterFormHasArePassedOver(t *testing.T) {
	t.Parallel()
	const known = `{"version":2,"changes":1,"writers":{"A":[7,1700000000]}`
	want := Revision{Version: 2, Changes: 1, Writes: []Write{{"A", 7, 1_700_000_000}}}
	for _, text := range []string{known + `}`, known + `,"digest":"x"}`, known + `,"digest":"1b70b3a4"}`, known + `,"x":{"writers":{}},"y":[1]}`} {
		if got := ReadRevision(text); !got.Equal(want) {
			t.Errorf("%s: got %+v", text, got)
		}
	}
	for _, text := range []string{known, known + `,}`, known + `,"x"}`, known + `,"x":1}}`, known + `}}`, known + `,"digest":"1b70b3a""}`, known + `"digest":"1b70b3a4"}`} {
		if got := ReadRevision(text); !got.Equal(Revision{}) {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

func TestWhatIsNoRevisionIsNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		``, `null`, `1`, `[]`, `{}`, `{"version":1}`, `{"writers":{}}`, `{"version":-1,"writers":{}}`,
		`{"version":1,"writers":[]}`, `{"version":1,"writers":{"A":1}}`, `{"version":1,"writers":{"A":[1,2,3]}}`,
		`{"version":1,"writers":{"A":["1","2"]}}`, `{"version":1e3,"writers":{}}`, `{"version":1,"writers":{}} x`,
		`{"version":1,"version":1,"writers":{}}`, `{"version":99999999999999999999,"writers":{}}`,
	} {
		if r := ReadRevision(text); !r.Equal(Revision{}) {
			t.Errorf("%s: got %+v", text, r)
		}
	}
}

// Which writes are dropped depends on their number alone: the clocks of writers
// may differ by any time.
func TestARevisionKeepsTheLastWritesOfAsManyWriters(t *testing.T) {
	t.Parallel()
	const now, day = 1_700_000_000, 86_400
	var r Revision
	for i := range int64(MaxWriters) {
		r = r.Next(i, Write{fmt.Sprint("W", i), 1, now + (i%3-1)*day})
	}
	for i := range MaxWriters {
		if got := r.Last(fmt.Sprint("W", i)); got != 1 {
			t.Errorf("the last write of writer %d is %d", i, got)
		}
	}
	r = r.Next(100, Write{"W0", 2, now - 2*day}).Next(101, Write{"X", 1, now + 2*day})
	for writer, want := range map[string]int64{"W0": 2, "W1": 0, "W2": 1, "W15": 1, "X": 1} {
		if got := r.Last(writer); got != want {
			t.Errorf("the last write of %s is %d, want %d", writer, got, want)
		}
	}
	if got := len(r.Writes); got != MaxWriters {
		t.Errorf("it keeps %d writes", got)
	}
}

func TestARevisionTellsWhetherItMayHaveDroppedAWrite(t *testing.T) {
	t.Parallel()
	for before := range MaxWriters + 1 {
		for since := range MaxWriters + 2 {
			var onto Revision
			for i := range before {
				onto = onto.Next(int64(i), Write{fmt.Sprint("before", i), 1, 1})
			}
			without, with := onto, onto.Next(50, Write{"mine", 1, 1})
			for i := range since {
				other := Write{fmt.Sprint("since", i), 1, 1}
				without, with = without.Next(100, other), with.Next(100, other)
			}
			isDropped := with.Last("mine") == 0
			if isDropped != (since >= MaxWriters) {
				t.Errorf("after %d others the write is dropped: %t", since, isDropped)
			}
			if got := without.MayHaveDropped(onto); got != isDropped {
				t.Errorf("%d before and %d since: it may have dropped the write: %t, want %t", before, since, got, isDropped)
			}
			if isDropped && !with.MayHaveDropped(onto) {
				t.Errorf("%d before and %d since: it does not know that it dropped the write", before, since)
			}
		}
	}
}

func FuzzReadRevision(f *testing.F) {
	f.Add(`{"version":2,"writers":{"A":[1,1700000000],"B":[7,1700000001]}}`)
	f.Add(`{"version":2,"changes":1,"writers":{"A":[1,1700000000],"B2":[7,1700000001]}}`)
	for _, text := range []string{`,}}`, `"A":[1,2]}}`, `"A":[1,2],"A":[1,2]}}`, `"A":[1,2],}}`, `"A":[01,2]}}`, `"A":[1,2]"B":[1,2]}}`, `"A":[1,2,3]}}`, `"A":[,2]}}`} {
		f.Add(`{"version":2,"changes":1,"writers":{` + text)
	}
	f.Add(`{"version":2,"changes":1,"writers":{"A":[1,2]},"digest":"1b70b3a4"}`)
	f.Add(` {"writers":{"":[-1,0]},"x":[{}],"version":0} `)
	f.Fuzz(func(t *testing.T, text string) {
		r := ReadRevision(text)
		if r.Equal(Revision{}) {
			return
		}
		written := string(r.AppendJSON(nil))
		if last := max(0, len(text)-digestBytes); isDigest(text[last:]) {
			text = text[:last] + "}"
		}
		if written != text && written != strings.Replace(text, revisionWriters, `,"changes":0`+revisionWriters, 1) {
			t.Errorf("%q is read as %+v, written as %s", text, r, written)
		}
		if !strictjson.Valid(text) {
			t.Errorf("%q is no JSON, and is read as %+v", text, r)
		}
	})
}
