package commit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
)

// crowd is a group of callers that wait for the first change. The store delays that
// change until proceed.
type crowd struct {
	t       *testing.T
	store   *store
	commits *Committer[words, *store]
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

func (c *crowd) join(ctx context.Context, edit func(*words) error) int {
	n := len(c.results)
	c.results = append(c.results, nil)
	c.working.Go(func() { _, c.results[n] = c.commits.Commit(ctx, key, edit) })
	synctest.Wait()
	return n
}

func (c *crowd) proceed() {
	close(c.store.meet)
	c.working.Wait()
	if left := len(c.commits.locks.locks); left != 0 {
		c.t.Errorf("%d locks are left", left)
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

func TestChangesOfAKeyAreMadeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		for _, edit := range []func(*words) error{add("a"), remove("a"), remove("a"), add("b")} {
			c.join(t.Context(), edit)
		}
		c.proceed()
		c.want("first b", nil, nil, errNotThere, nil)
	})
}

func TestPanickingEditReleasesTheLock(t *testing.T) {
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
		c.proceed()
		c.want("first a b", nil, nil)
		if panicked != "at the disco" {
			t.Errorf("got %v, want the panic", panicked)
		}
	})
}

func TestCancelledWaiterChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		ctx, cancel := context.WithCancel(t.Context())
		c.join(ctx, add("a"))
		c.join(t.Context(), add("b"))
		cancel()
		synctest.Wait()
		if !errors.Is(c.results[0], context.Canceled) {
			t.Errorf("it still waits: %v", c.results[0])
		}
		c.proceed()
		c.want("first b", context.Canceled, nil)
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &store{}, Written)
		other := &store{}
		read := c.commits.access.Read
		c.commits.access.Read = func(ctx context.Context, k string) (Snapshot[words, *store], error) {
			if k == "other" {
				return other.read(ctx, k)
			}
			return read(ctx, k)
		}
		if _, err := c.commits.Commit(t.Context(), "other", add("a")); err != nil || !other.value.has("a") {
			t.Errorf("got %v", err)
		}
		c.proceed()
	})
}

// Each writer uses one of a few committers, like writers on as many hosts.
func TestNoChangeIsLostOrDoubledWithManyWriters(t *testing.T) {
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
							t.Errorf("%s was made twice", word)
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
