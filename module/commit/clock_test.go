package commit

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/stored"
)

var skews = []time.Duration{0, 11 * time.Minute, -11 * time.Minute, 24 * time.Hour, -24 * time.Hour}

func skewed(by time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(by) }
}

func TestLostReplyIsFoundDespiteClockSkew(t *testing.T) {
	for _, mine := range skews {
		for _, theirs := range skews {
			t.Run(fmt.Sprint(mine, " and ", theirs), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &store{value: words{"a"}, outcomes: []outcome{losesReply}}
					other := New(access(s.read), Written)
					other.SetClock(skewed(theirs))
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
					commits.SetClock(skewed(mine))
					state, err := commits.Commit(t.Context(), key, remove("a"))
					if err != nil || state.Value.has("a") || !state.Value.has("other2") {
						t.Errorf("the removal took effect, but got error %v; stored is %q", err, s.value.list)
					}
				})
			})
		}
	}
}

// A revision names at most MaxWriters writers. If that many others wrote after a write
// whose reply was lost, the revision cannot tell whether the write took effect. The
// change then fails, because a second write could apply it twice.
func TestOutcomeIsUnknownOnceTheRevisionMayHaveDroppedTheWrite(t *testing.T) {
	for name, test := range map[string]struct {
		happens outcome
		others  int
		want    error
	}{
		"applied, as many others as fit":     {losesReply, stored.MaxWriters - 1, nil},
		"applied, one more":                  {losesReply, stored.MaxWriters, ErrOutcomeUnknown},
		"not applied, as many others as fit": {losesSend, stored.MaxWriters - 1, nil},
		"not applied, one more":              {losesSend, stored.MaxWriters, ErrOutcomeUnknown},
		"applied late, after one more":       {comesLate, stored.MaxWriters, ErrOutcomeUnknown},
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

// A write that the client sent twice still changes the value once.
func TestStaleCacheNeverMakesTheOutcomeUnknown(t *testing.T) {
	for name, isApplied := range map[string]bool{"refused": false, "sent twice, the first was applied": true} {
		s := &store{value: words{"a"}}
		old := s.snapshot()
		for i := range stored.MaxWriters {
			s.revision = s.revision.Next(s.revision.Version+1, stored.Write{Writer: fmt.Sprint("OTHER", i), Attempt: 1})
		}
		if isApplied {
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

// A failover may lose versions; later changes must not reuse them, even if the clock is
// behind.
func TestLostVersionsAreNotReused(t *testing.T) {
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
		// Two versions collide in about 1 % of the rounds.
		if same > rounds/4 {
			t.Errorf("%d of %d versions were reused", same, rounds*changes)
		}
	})
}
