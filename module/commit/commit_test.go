package commit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/stored"
)

const key = "key"

func TestChangeIsRetriedOnlyWhileItMaySucceed(t *testing.T) {
	for name, test := range map[string]struct {
		outcomes []outcome
		reads    int
		writes   int
		want     error
	}{
		"works at once":                      {nil, 1, 1, nil},
		"lost races":                         {[]outcome{losesRace, losesRace, losesRace}, 4, 4, nil},
		"a lost reply":                       {[]outcome{losesReply}, 2, 1, nil},
		"a lost request":                     {[]outcome{losesSend}, 2, 2, nil},
		"a late request":                     {[]outcome{comesLate}, 2, 1, nil},
		"a request after the next read":      {[]outcome{comesAfter}, 3, 2, nil},
		"two lost requests":                  {[]outcome{losesSend, losesSend}, 3, 3, nil},
		"two lost requests and a reply":      {[]outcome{losesSend, losesSend, losesReply}, 3, 3, errLost},
		"a lost request among races":         {[]outcome{losesRace, losesSend, losesRace, losesRace}, 5, 5, nil},
		"lost races do not reset failures":   {[]outcome{losesSend, losesRace, losesSend, losesRace, losesSend}, 5, 5, errLost},
		"no connection":                      {[]outcome{noDial}, 1, 1, errNoDial},
		"no connection after a lost request": {[]outcome{losesSend, noDial}, 2, 2, errNoDial},
		"an error of the store":              {[]outcome{isRefused}, 1, 1, errAnswer},
		"a failed read":                      {[]outcome{failsToRead}, 2, 1, nil},
		"three failed reads":                 {[]outcome{failsToRead, failsToRead, failsToRead}, 3, 0, errLost},
		"a lost reply and a failed read":     {[]outcome{losesReply, failsToRead}, 3, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{revision: stored.Revision{Version: later}, outcomes: test.outcomes}
				state, err := New(access(s.read), Written).Commit(t.Context(), key, add("a"))
				if !isError(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if s.reads != test.reads || s.writes != test.writes {
					t.Errorf("%d reads and %d writes, want %d and %d", s.reads, s.writes, test.reads, test.writes)
				}
				if want := int64(s.others); err == nil && (!s.value.has("a") || s.revision.Changes != want+1) {
					t.Errorf("stored is %q after %d changes", s.value.list, s.revision.Changes)
				}
				if err == nil && !s.isStored(state) {
					t.Errorf("got %+v, stored is %q with %+v", state, s.value.list, s.revision)
				}
			})
		})
	}
}

const later = 1 << 60

func TestVersionsGrowEvenWhenTheClockStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		commits := New(access(s.read), Written)
		commit := func(word string) int64 {
			t.Helper()
			state, err := commits.Commit(t.Context(), key, add(word))
			if err != nil {
				t.Fatal(err)
			}
			return state.Revision.Version
		}
		now := time.Now().UnixMicro()
		if first, second := commit("a"), commit("b"); first != now || second <= now || second > now+maxStep {
			t.Errorf("got versions %d and %d at %d", first, second, now)
		}
		time.Sleep(time.Second)
		s.value, s.revision = words{}, stored.Revision{} // deleted by an operator
		if third := commit("a"); third != now+time.Second.Microseconds() {
			t.Errorf("got version %d after a second", third-now)
		}
	})
}

// The change is not decided again after it took effect.
func TestLostReplyKeepsTheFirstResultDespiteLaterWrites(t *testing.T) {
	for name, test := range map[string]struct {
		before string
		edit   func(*words) error
		happen outcome
		since  func(*words) error // by another writer, before the next read
		want   error
		stored string
	}{
		"removed, still absent":           {"a b", remove("a"), losesReply, add("c"), nil, "b c"},
		"removed, added again since":      {"a b", remove("a"), losesReply, add("a"), nil, "b a"},
		"added, removed since":            {"b", add("a"), losesReply, remove("a"), nil, "b"},
		"not removed, removed by another": {"a b", remove("a"), losesSend, remove("a"), errNotThere, "b"},
		"not added, added by another":     {"b", add("a"), losesSend, add("a"), errThere, "b a"},
		"late, removed by another":        {"a b", remove("a"), comesLate, remove("a"), errNotThere, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{value: words{test.before}, outcomes: []outcome{test.happen}}
				since := func(ctx context.Context, key string) (Snapshot[words, *store], error) {
					if s.writes == 1 && s.others == 0 {
						s.byOther(test.since)
					}
					return s.read(ctx, key)
				}
				got, err := New(access(since), Written).Commit(t.Context(), key, test.edit)
				if !isError(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if s.value.list != test.stored || err == nil && !s.isStored(got) {
					t.Errorf("stored is %q, want %q; returned is %+v", s.value.list, test.stored, got)
				}
			})
		})
	}
}

func TestUnchangedValueIsWrittenOnlyToConfirmIt(t *testing.T) {
	nothing := func(*words) error { return nil }
	refused := func(*words) error { return errThere }
	for name, test := range map[string]struct {
		mode     Mode
		edit     func(*words) error
		outcomes []outcome
		writes   int
		changes  int64
	}{
		"nothing":                        {Written, nothing, nil, 0, 0},
		"nothing, confirmed":             {Confirmed, nothing, nil, 1, 0},
		"refused":                        {Written, refused, nil, 0, 0},
		"refused, confirmed":             {Confirmed, refused, nil, 0, 0},
		"a lost reply":                   {Written, add("a"), []outcome{losesReply}, 1, 1},
		"a lost reply, confirmed":        {Confirmed, add("a"), []outcome{losesReply}, 2, 1},
		"two lost replies, confirmed":    {Confirmed, add("a"), []outcome{losesReply, losesReply}, 3, 1},
		"lost confirmation":              {Confirmed, add("a"), []outcome{losesReply, losesSend}, 3, 1},
		"late confirmation":              {Confirmed, add("a"), []outcome{losesReply, comesAfter}, 4, 1},
		"lost race for the confirmation": {Confirmed, add("a"), []outcome{losesReply, losesRace}, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{revision: stored.Revision{Version: later}, outcomes: test.outcomes}
				got, err := New(access(s.read), test.mode).Commit(t.Context(), key, test.edit)
				if err != nil && err != errThere {
					t.Error(err)
				}
				if err == nil && !s.isStored(got) {
					t.Errorf("got %+v, stored is %q with %+v", got, s.value.list, s.revision)
				}
				if s.writes != test.writes || s.revision.Changes != test.changes || (s.revision.Version > later) != (test.changes > 0) {
					t.Errorf("%d writes and %d changes, version %d, want %d and %d",
						s.writes, s.revision.Changes, s.revision.Version-later, test.writes, test.changes)
				}
			})
		})
	}
}

func TestAnEditWithoutEffectRunsAgainOnlyIfTheCacheWasStale(t *testing.T) {
	for name, test := range map[string]struct {
		cached string
		edit   func(*words) error
		runs   int
		want   error
		stored string
	}{
		"refused":                       {"a", add("a"), 1, errThere, "a"},
		"unchanged":                     {"a", func(*words) error { return nil }, 1, nil, "a"},
		"refused by a stale value":      {"b", remove("a"), 2, nil, ""},
		"refused by a hand edit before": {"", remove("a"), 2, nil, ""}, // the revision is the same
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{value: words{"a"}}
			s.revision = s.revision.Next(1, stored.Write{Writer: "OTHER", Attempt: 1})
			cached := s.snapshot()
			if cached.Value.list = test.cached; test.cached == "b" {
				cached.Revision = stored.Revision{Version: 1}
			}
			a, runs := access(s.read), 0
			a.Cached = func(string) (Snapshot[words, *store], bool) { return cached, true }
			_, err := New(a, Written).Commit(t.Context(), key, func(w *words) error {
				runs++
				return test.edit(w)
			})
			if err != test.want || runs != test.runs || s.value.list != test.stored {
				t.Errorf("got %v after %d runs, stored is %q", err, runs, s.value.list)
			}
		})
	}
}

func alwaysLost(attempts *int) *Committer[words, *store] {
	return New(access(func(context.Context, string) (Snapshot[words, *store], error) {
		*attempts++
		return (&store{outcomes: []outcome{losesRace}}).snapshot(), nil
	}), Written)
}

func TestLostRacesAreRetriedUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Minute
		start, attempts := time.Now(), 0
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if _, err := alwaysLost(&attempts).Commit(ctx, key, add("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != limit {
			t.Errorf("gave up after %s, want %s", took, limit)
		}
		if least := int(limit / maxWait); attempts < least {
			t.Errorf("%d attempts in %s, want at least %d", attempts, limit, least)
		}
	})
}

func TestWaitsDoubleUpToTheMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds, attempts = 200, 12
		longest := make([]time.Duration, attempts)
		for range rounds {
			s, last := &store{}, time.Now()
			for range attempts - 1 {
				s.outcomes = append(s.outcomes, losesRace)
			}
			read := func(ctx context.Context, key string) (Snapshot[words, *store], error) {
				longest[s.reads] = max(longest[s.reads], time.Since(last))
				last = time.Now()
				return s.read(ctx, key)
			}
			if _, err := New(access(read), Written).Commit(t.Context(), key, add("a")); err != nil {
				t.Fatal(err)
			}
		}
		if longest[0] != 0 {
			t.Errorf("the first attempt waited %s", longest[0])
		}
		bound := firstWait
		for i, wait := range longest[1:] {
			// The longest of 200 random waits is almost always above half the bound.
			if wait >= bound || wait < bound/2 {
				t.Errorf("before attempt %d at most %s, want just under %s", i+1, wait, bound)
			}
			bound = min(2*bound, maxWait)
		}
	})
}

func TestCancelledContextEndsAWaitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		attempts := 0
		time.AfterFunc(time.Second, cancel)
		if _, err := alwaysLost(&attempts).Commit(ctx, key, add("a")); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
	})
}

func TestEachCommitterHasItsOwnWriterName(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		c := New(access((&store{}).read), Written)
		if seen[c.writer] || len(c.writer) != writerLength {
			t.Fatalf("got %q again", c.writer)
		}
		seen[c.writer] = true
	}
}
