package stored

import (
	"fmt"
	"testing"
)

func TestRevisionIsReadBack(t *testing.T) {
	t.Parallel()
	r := Revision{}.Next(1, Write{"A", 1}).Next(2, Write{"B", 7})
	const want = `{"version":2,"changes":2,"writers":{"A":1,"B":7}}`
	text := string(r.AppendJSON(nil))
	if text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if got := ReadRevision(text); !got.Equal(r) || got.Last("A") != 1 || got.Last("B") != 7 || got.Last("C") != 0 {
		t.Errorf("got %+v, want %+v", got, r)
	}
	withDigest := text[:len(text)-1] + `,"digest":"1b70b3a4"}`
	if got := ReadRevision(withDigest); !got.Equal(r) {
		t.Errorf("with a digest: got %+v, want %+v", got, r)
	}
}

func TestOtherTextsGiveTheZeroRevision(t *testing.T) {
	t.Parallel()
	const whole = `{"version":2,"changes":1,"writers":{"A":7}`
	for _, text := range []string{
		``, `null`, `1`, `[]`, `{}`, `{"version":1}`, `{"writers":{}}`, `{"version":1,"writers":{}}`,
		`{"version":-1,"changes":0,"writers":{}}`, `{"version":1,"changes":-1,"writers":{}}`,
		`{"version":1,"changes":1,"writers":[]}`, `{"version":1,"changes":1,"writers":{"A":[1,2]}}`,
		`{"version":1,"changes":1,"writers":{"A":"1"}}`, `{"version":1e3,"changes":1,"writers":{}}`,
		`{"version":1,"changes":1,"writers":{}} x`, `{"version":1,"version":1,"changes":1,"writers":{}}`,
		`{"version":1,"changes":1,"writers":{"A":1,"A":2}}`, `{"version":1,"changes":1,"writers":{"A":-1}}`,
		`{"version":4611686018427387904,"changes":1,"writers":{}}`, `{"version":99999999999999999999,"changes":1,"writers":{}}`,
		whole, whole + `,}`, whole + `,"x"}`, whole + `,"x":1}`, whole + `}}`, whole + `"digest":"1b70b3a4"}`,
	} {
		if r := ReadRevision(text); !r.Equal(Revision{}) {
			t.Errorf("%s: got %+v", text, r)
		}
	}
}

func TestRevisionRemembersTheLatestWriters(t *testing.T) {
	t.Parallel()
	var r Revision
	for i := range int64(MaxWriters) {
		r = r.Next(i, Write{fmt.Sprint("W", i), 1})
	}
	for i := range MaxWriters {
		if got := r.Last(fmt.Sprint("W", i)); got != 1 {
			t.Errorf("the last write of writer %d is %d", i, got)
		}
	}
	r = r.Next(100, Write{"W0", 2}).Next(101, Write{"X", 1})
	for writer, want := range map[string]int64{"W0": 2, "W1": 0, "W2": 1, "W15": 1, "X": 1} {
		if got := r.Last(writer); got != want {
			t.Errorf("the last write of %s is %d, want %d", writer, got, want)
		}
	}
	if got := len(r.Writes); got != MaxWriters {
		t.Errorf("the revision has %d writes", got)
	}
}

func TestMayHaveDroppedAgreesWithTheWritesSince(t *testing.T) {
	t.Parallel()
	for before := range MaxWriters + 1 {
		for since := range MaxWriters + 2 {
			var base Revision
			for i := range before {
				base = base.Next(int64(i), Write{fmt.Sprint("before", i), 1})
			}
			without, with := base, base.Next(50, Write{"mine", 1})
			for i := range since {
				other := Write{fmt.Sprint("since", i), 1}
				without, with = without.Next(100, other), with.Next(100, other)
			}
			isDropped := with.Last("mine") == 0
			if isDropped != (since >= MaxWriters) {
				t.Errorf("after %d other writers, the write is dropped: %t", since, isDropped)
			}
			if got := without.MayHaveDropped(base); got != isDropped {
				t.Errorf("%d before and %d since: MayHaveDropped is %t, want %t", before, since, got, isDropped)
			}
			if isDropped && !with.MayHaveDropped(base) {
				t.Errorf("%d before and %d since: MayHaveDropped misses a dropped write", before, since)
			}
		}
	}
}

func FuzzReadRevision(f *testing.F) {
	f.Add(`{"version":2,"changes":1,"writers":{"A":1,"B2":7}}`)
	for _, text := range []string{`,}}`, `"A":1,"A":2}}`, `"A":1,}}`, `"A":01}}`, `"A":1"B":2}}`, `"A":[1,2]}}`, `"A":-1}}`} {
		f.Add(`{"version":2,"changes":1,"writers":{` + text)
	}
	f.Add(`{"version":2,"changes":1,"writers":{"A":1},"digest":"1b70b3a4"}`)
	f.Add(` {"writers":{"":-1},"x":[{}],"version":0} `)
	f.Fuzz(func(t *testing.T, text string) {
		r := ReadRevision(text)
		if again := ReadRevision(string(r.AppendJSON(nil))); !again.Equal(r) {
			t.Errorf("%q is read as %+v, and after writing as %+v", text, r, again)
		}
		if next := r.Next(r.Version+1, Write{"A", r.Last("A") + 1}); next.Version <= r.Version || next.Changes <= r.Changes {
			t.Errorf("%q: after %+v comes %+v", text, r, next)
		}
	})
}
