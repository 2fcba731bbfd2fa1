package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// crowd is callers that wait behind a first change, which holds the store
// until it is told to go on.
type crowd struct {
	t       *testing.T
	store   *store
	commits *Committer[words, replacement]
	first   error
	results []error
	working sync.WaitGroup
}

func newCrowd(t *testing.T, s *store, mode Mode) *crowd {
	s.meet = make(chan struct{})
	c := &crowd{t: t, store: s, commits: New(access(s.read), mode)}
	c.working.Go(func() { _, c.first = c.commits.Commit(t.Context(), key, add("first")) })
	synctest.Wait()
	return c
}

// join has one more caller wait, and returns its number.
func (c *crowd) join(ctx context.Context, edit func(*words) error) int {
	n := len(c.results)
	c.results = append(c.results, nil)
	c.working.Go(func() { _, c.results[n] = c.commits.Commit(ctx, key, edit) })
	synctest.Wait()
	return n
}

// goOn lets all writes happen and waits for the callers.
func (c *crowd) goOn() {
	close(c.store.meet)
	c.working.Wait()
	if len(c.commits.queues) != 0 {
		c.t.Errorf("what is left: %v", c.commits.queues)
	}
}

func (c *crowd) want(stored string, results ...error) {
	c.t.Helper()
	if c.store.value.list != stored {
		c.t.Errorf("stored is %q, want %q", c.store.value.list, stored)
	}
	for i, want := range results {
		if !isError(c.results[i], want) {
			c.t.Errorf("caller %d got %v, want %v", i, c.results[i], want)
		}
	}
}

// inBubble runs a test with all its goroutines and time of its own.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func TestThoseWhoWaitAreWrittenTogetherInTheirOrder(t *testing.T) {
	for name, test := range map[string]struct {
		outcomes []outcome // of the batch
		writes   int       // of the batch
		stored   string
	}{
		"at once":               {nil, 1, "first b"},
		"after a lost race":     {[]outcome{losesRace}, 2, "first other0 b"},
		"with a lost reply":     {[]outcome{losesReply}, 1, "first b"},
		"with a lost request":   {[]outcome{losesSend}, 2, "first b"},
		"with a late request":   {[]outcome{comesLate}, 1, "first b"},
		"with a later request":  {[]outcome{comesAfter}, 2, "first b"},
		"after two lost in all": {[]outcome{losesSend, losesReply}, 2, "first b"},
	} {
		inBubble(t, name, func(t *testing.T) {
			c := newCrowd(t, &store{outcomes: append([]outcome{works}, test.outcomes...)}, Written)
			c.join(t.Context(), add("a"))
			c.join(t.Context(), add("b"))
			c.join(t.Context(), add("a"))
			c.join(t.Context(), remove("a"))
			c.join(t.Context(), remove("x"))
			c.goOn()
			c.want(test.stored, nil, nil, errThere, nil, errNotThere)
			if got := c.store.writes - 1; got != test.writes {
				t.Errorf("%d writes, want %d", got, test.writes)
			}
		})
	}
}

func TestAllOfABatchHaveTheFirstAnswersWhateverOthersDidSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{value: words{"a"}, outcomes: []outcome{works, losesReply}}
		c := newCrowd(t, s, Written)
		c.join(t.Context(), remove("a"))
		c.join(t.Context(), add("b"))
		c.join(t.Context(), func(w *words) error {
			if s.writes == 2 && s.others == 0 { // the reply is lost: others go on
				s.byOther(remove("b"))
			}
			return remove("a")(w)
		})
		c.goOn()
		c.want("first b", nil, nil, errNotThere)
	})
}

func TestABatchThatFailsFailsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{outcomes: []outcome{works, noDial}}, Written)
		c.join(t.Context(), add("a"))
		c.join(t.Context(), add("b"))
		c.goOn()
		c.want("first", errNoDial, errNoDial)
	})
}

func TestAPanicOfAnEditIsItsCallersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		c.join(t.Context(), add("a"))
		var panicked any
		c.working.Go(func() {
			defer func() { panicked = recover() }()
			c.commits.Commit(t.Context(), key, func(*words) error { panic("at the disco") })
		})
		synctest.Wait()
		c.join(t.Context(), add("b"))
		c.goOn()
		c.want("first a b", nil, nil)
		if text := fmt.Sprint(panicked); !strings.Contains(text, "at the disco") || !strings.Contains(text, "batch_test.go") {
			t.Errorf("got %v, want the panic and where it comes from", panicked)
		}
	})
}

// An edit that ends its goroutine takes nobody with it but those whose changes
// it was making.
func TestAGoroutineThatEndsHandsTheKeyOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		c.join(t.Context(), func(*words) error { runtime.Goexit(); return nil })
		c.goOn()
		if _, err := c.commits.Commit(t.Context(), key, add("a")); err != nil {
			t.Error(err)
		}
		c.want("first a")
	})
}

func TestACallerThatGoesAway(t *testing.T) {
	inBubble(t, "while it waits changes nothing", func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		ctx, cancel := context.WithCancel(t.Context())
		c.join(ctx, add("a"))
		c.join(t.Context(), add("b"))
		cancel()
		synctest.Wait()
		c.goOn()
		c.want("first b", context.Canceled, nil)
	})
	inBubble(t, "from a batch does not take the others with it", func(t *testing.T) {
		for away := range 3 { // one of them is the leader
			c := newCrowd(t, &store{}, Written)
			var cancels []context.CancelFunc
			for n := range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				cancels = append(cancels, cancel)
				c.join(ctx, add(fmt.Sprint(n)))
			}
			c.store.meet <- struct{}{}
			synctest.Wait()
			cancels[away]()
			synctest.Wait()
			c.goOn()
			c.want("first 0 1 2")
			for n, err := range c.results {
				if n != away && err != nil {
					t.Errorf("when %d goes away, %d gets %v", away, n, err)
				}
			}
		}
	})
	inBubble(t, "with all others ends the batch", func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		ctx, cancel := context.WithCancel(t.Context())
		c.join(ctx, add("a"))
		c.join(ctx, add("b"))
		c.store.meet <- struct{}{}
		synctest.Wait()
		cancel()
		synctest.Wait()
		c.goOn()
		for n, err := range c.results {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%d got %v", n, err)
			}
		}
	})
}

func TestEachCallerIsAnsweredWithinItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		began := time.Now()
		took := make([]time.Duration, 4)
		for n := range took {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(n+2)%4)*time.Second)
			defer cancel()
			c.working.Go(func() {
				if _, err := c.commits.Commit(ctx, key, add(fmt.Sprint(n))); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%d got %v", n, err)
				}
				took[n] = time.Since(began)
			})
		}
		synctest.Wait()
		c.store.meet <- struct{}{} // the batch begins, and hangs
		for range 4 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for n, got := range took {
			// The leader, who may take longest, is held by the store of this test.
			if want := time.Duration(1+(n+2)%4) * time.Second; got != want && want != 4*time.Second {
				t.Errorf("%d was answered after %v, want %v", n, got, want)
			}
		}
		c.goOn()
	})
}

func TestABatchHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		for n := range 2*maxBatch + 1 {
			c.join(t.Context(), add(fmt.Sprint(n)))
		}
		c.goOn()
		if c.store.writes != 1+3 {
			t.Errorf("%d writes", c.store.writes)
		}
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		other := &store{}
		read := c.commits.access.Read
		c.commits.access.Read = func(ctx context.Context, k string) (Snapshot[words, replacement], error) {
			if k == "other" {
				return other.read(ctx, k)
			}
			return read(ctx, k)
		}
		if _, err := c.commits.Commit(t.Context(), "other", add("a")); err != nil || !other.value.has("a") {
			t.Errorf("got %v", err)
		}
		c.goOn()
	})
}

// Many writers on one key, each over one of a few committers, as on as many
// hosts: every change is acknowledged and there once.
func TestNothingIsLostOrDoubledAmongMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hosts, callers, changes = 4, 16, 10
		random := []outcome{works, losesRace, works, losesReply, works, comesLate, works, losesSend, works, works, comesAfter}
		s := &store{}
		for range 20 {
			s.outcomes = append(s.outcomes, random...)
		}
		var working sync.WaitGroup
		acknowledged := make([]map[string]bool, hosts*callers)
		for n := range acknowledged {
			acknowledged[n] = map[string]bool{}
		}
		for host := range hosts {
			c := New(access(s.read), Written)
			for caller := range callers {
				n := host*callers + caller
				working.Go(func() {
					for i := range changes {
						word := fmt.Sprintf("%d-%d", n, i)
						switch _, err := c.Commit(t.Context(), key, add(word)); {
						case err == nil:
							acknowledged[n][word] = true
						case errors.Is(err, errThere):
							t.Errorf("%s is doubled", word)
						}
					}
				})
			}
		}
		working.Wait()
		for _, words := range acknowledged {
			for word := range words {
				if !s.value.has(word) {
					t.Errorf("%s is lost", word)
				}
			}
		}
	})
}

// All callers of a batch get the same state, and it is what is stored.
func TestABatchReturnsWhatIsStored(t *testing.T) {
	for name, outcomes := range map[string][]outcome{
		"at once":              nil,
		"after a lost race":    {losesRace},
		"with a lost reply":    {losesReply},
		"with a lost request":  {losesSend},
		"with a late request":  {comesLate},
		"with a later request": {comesAfter},
	} {
		for mode, suffix := range map[Mode]string{Written: "", Confirmed: ", confirmed"} {
			inBubble(t, name+suffix, func(t *testing.T) {
				c := newCrowd(t, &store{outcomes: append([]outcome{works}, outcomes...)}, mode)
				states := make([]State[words], 5)
				for n := range states {
					c.working.Go(func() {
						var err error
						if states[n], err = c.commits.Commit(t.Context(), key, add(fmt.Sprint(n))); err != nil {
							t.Errorf("%d got %v", n, err)
						}
					})
				}
				synctest.Wait()
				c.goOn()
				for n, got := range states {
					if got.Value != c.store.value || !got.Revision.Equal(c.store.revision) || got.Revision.Version == 0 {
						t.Errorf("%d got %+v, stored is %+v with %+v", n, got, c.store.value, c.store.revision)
					}
				}
			})
		}
	}
}

func TestWhatWasChangedSinceIsNotReturnedAsAnOlderState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{outcomes: []outcome{losesReply}}
		c := New(access(s.read), Written)
		got, err := c.Commit(t.Context(), key, func(w *words) error {
			if s.writes == 1 && s.others == 0 {
				t.Error("what took effect is made again")
			}
			s.late = func() { s.byOther(add("other")) } // before the reply's loss is looked into
			return add("a")(w)
		})
		if err != nil || got.Value != s.value || !got.Revision.Equal(s.revision) || !got.Value.has("other") {
			t.Errorf("got %+v, error %v, stored is %+v with %+v", got, err, s.value, s.revision)
		}
	})
}

func TestAChangeThatChangesNothingReturnsWhatIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mode := range []Mode{Written, Confirmed} {
			s := &store{}
			c := New(access(s.read), mode)
			first, err := c.Commit(t.Context(), key, add("a"))
			if err != nil {
				t.Fatal(err)
			}
			same, err := c.Commit(t.Context(), key, func(*words) error { return nil })
			if err != nil || same.Value != s.value || !same.Revision.Equal(s.revision) || same.Revision.Version != first.Revision.Version {
				t.Errorf("got %+v, error %v, after %+v; stored is %+v", same, err, first, s.revision)
			}
		}
	})
}
