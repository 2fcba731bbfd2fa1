package commit

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/stored"
)

// skews are how far hosts' clocks were seen, or feared, to be wrong.
var skews = []time.Duration{0, 11 * time.Minute, -11 * time.Minute, 24 * time.Hour, -24 * time.Hour}

func skewed(by time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(by) }
}

// A write whose answer was lost is found among the writes of others, whatever
// their clocks say.
func TestALostAnswerIsFoundWhateverTheClocksSay(t *testing.T) {
	for _, mine := range skews {
		for _, theirs := range skews {
			t.Run(fmt.Sprint(mine, " and ", theirs), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &store{value: words{"a"}, outcomes: []outcome{losesReply}}
					other := New(access(s.read), Written)
					other.Now(skewed(theirs))
					since := func(ctx context.Context, key string) (Snapshot[words, *store], error) {
						if s.writes == 1 {
							for i := range 3 {
								if _, err := other.Commit(ctx, key, add(fmt.Sprint("other", i))); err != nil {
									return Snapshot[words, *store]{}, err
								}
							}
						}
						return s.read(ctx, key)
					}
					commits := New(access(since), Written)
					commits.Now(skewed(mine))
					state, err := commits.Commit(t.Context(), key, remove("a"))
					if err != nil || state.Value.has("a") || !state.Value.has("other2") {
						t.Errorf("a removal that took effect: %v, stored is %q", err, s.value.list)
					}
				})
			})
		}
	}
}

// If as many others as a revision remembers wrote after a write whose answer was
// lost, the change is not judged a second time.
func TestAWriteThatTheRevisionMayHaveDroppedIsNotJudgedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		happens outcome
		others  int
		want    error
	}{
		"made, as many others as fit":        {losesReply, stored.MaxWriters - 1, nil},
		"made, one more":                     {losesReply, stored.MaxWriters, ErrOutcomeUnknown},
		"not made, as many others as fit":    {losesSend, stored.MaxWriters - 1, nil},
		"not made, one more":                 {losesSend, stored.MaxWriters, ErrOutcomeUnknown},
		"comes late, after one more":         {comesLate, stored.MaxWriters, ErrOutcomeUnknown},
		"a lost race, as many others as fit": {losesRace, stored.MaxWriters - 2, nil},
		"a lost race, one more":              {losesRace, stored.MaxWriters, ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{value: words{"a"}, outcomes: []outcome{test.happens}}
				since := func(ctx context.Context, key string) (Snapshot[words, *store], error) {
					if s.writes == 1 {
						for i := range test.others {
							s.revision = s.revision.Next(s.revision.Version+1, stored.Write{Writer: fmt.Sprint("OTHER", i), Attempt: 1})
						}
					}
					return s.read(ctx, key)
				}
				_, err := New(access(since), Written).Commit(t.Context(), key, remove("a"))
				if !isError(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if test.want != nil && s.writes != 1 {
					t.Errorf("%d writes", s.writes)
				}
			})
		})
	}
}

// A change that begins with what was cached long ago is made, whoever has written
// since, and once if the write was sent twice.
func TestAWriteOntoAnOldCachedValueIsNoUnknownOutcome(t *testing.T) {
	for name, isMade := range map[string]bool{"refused": false, "sent twice, and made the first time": true} {
		s := &store{value: words{"a"}}
		old := s.snapshot()
		for i := range stored.MaxWriters {
			s.revision = s.revision.Next(s.revision.Version+1, stored.Write{Writer: fmt.Sprint("OTHER", i), Attempt: 1})
		}
		if isMade {
			old.Revision = s.revision
		}
		a := access(s.read)
		a.Cached = func(string) (Snapshot[words, *store], bool) { return old, true }
		a.Write = func(ctx context.Context, u Update[words, *store]) (Snapshot[words, *store], bool, error) {
			now, done, err := write(ctx, u)
			return now, done && s.writes > 1, err
		}
		if _, err := New(a, Written).Commit(t.Context(), "key", remove("a")); err != nil || s.value.list != "" {
			t.Errorf("%s: got error %v, and %q is stored", name, err, s.value.list)
		}
	}
}

// Versions that the store has lost are not given again, even by a clock that is
// behind.
func TestLostVersionsAreNotGivenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same := 0
		const rounds, changes = 100, 5
		for range rounds {
			versions := map[int64]bool{}
			for range 2 {
				s := &store{revision: stored.Revision{Version: later}}
				commits := New(access(s.read), Written)
				for i := range changes {
					state, err := commits.Commit(t.Context(), key, add(fmt.Sprint(i)))
					if err != nil {
						t.Fatal(err)
					}
					if versions[state.Revision.Version] {
						same++
					}
					versions[state.Revision.Version] = true
				}
			}
		}
		// Two draws of five among about a thousand: about one in a hundred rounds meets.
		if same > rounds/4 {
			t.Errorf("%d versions of %d were given again", same, rounds*changes)
		}
	})
}
