package commit

import (
	"fmt"
	"strings"
	"testing"
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

// Which writes are dropped depends on their number alone: the clocks of writers
// may differ by any time.
func TestAStampKeepsTheLastWritesOfAsManyWriters(t *testing.T) {
	t.Parallel()
	const now, day = 1_700_000_000, 86_400
	var s Stamp
	for i := range int64(maxWriters) {
		s = s.next(i, write{fmt.Sprint("W", i), 1, now + (i%3-1)*day})
	}
	for i := range maxWriters {
		if got := s.last(fmt.Sprint("W", i)); got != 1 {
			t.Errorf("the last write of writer %d is %d", i, got)
		}
	}
	s = s.next(100, write{"W0", 2, now - 2*day}).next(101, write{"X", 1, now + 2*day})
	for writer, want := range map[string]int64{"W0": 2, "W1": 0, "W2": 1, "W15": 1, "X": 1} {
		if got := s.last(writer); got != want {
			t.Errorf("the last write of %s is %d, want %d", writer, got, want)
		}
	}
	if got := len(s.writes); got != maxWriters {
		t.Errorf("it keeps %d writes", got)
	}
}

func TestAStampTellsWhetherItMayHaveDroppedAWrite(t *testing.T) {
	t.Parallel()
	for before := range maxWriters + 1 {
		for since := range maxWriters + 2 {
			var onto Stamp
			for i := range before {
				onto = onto.next(int64(i), write{fmt.Sprint("before", i), 1, 1})
			}
			without, with := onto, onto.next(50, write{"mine", 1, 1})
			for i := range since {
				other := write{fmt.Sprint("since", i), 1, 1}
				without, with = without.next(100, other), with.next(100, other)
			}
			isDropped := with.last("mine") == 0
			if isDropped != (since >= maxWriters) {
				t.Errorf("after %d others the write is dropped: %t", since, isDropped)
			}
			if got := without.mayHaveDropped(onto); got != isDropped {
				t.Errorf("%d before and %d since: it may have dropped the write: %t, want %t", before, since, got, isDropped)
			}
			if isDropped && !with.mayHaveDropped(onto) {
				t.Errorf("%d before and %d since: it does not know that it dropped the write", before, since)
			}
		}
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
