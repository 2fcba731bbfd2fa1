package commit

import (
	"context"
	"fmt"
	"sync"
)

// turns lets the changes of one name happen one after the other, in the order in which
// they came. A revision remembers only the last write of each writer: a second write of
// the same writer would hide whether the first one took effect, if its reply was lost.
type turns struct {
	mu    sync.Mutex
	taken map[string]*turn
}

type turn struct {
	change  chan struct{} // is full while a change is under way
	callers int           // those that make a change or wait
}

func newTurns() *turns { return &turns{taken: map[string]*turn{}} }

// take waits for the turn of a name, which ends with release.
func (t *turns) take(ctx context.Context, name string) (release func(), err error) {
	one := t.join(name)
	select {
	case one.change <- struct{}{}:
		return func() {
			<-one.change
			t.leave(name, one)
		}, nil
	case <-ctx.Done():
		t.leave(name, one)
		return nil, fmt.Errorf("waited for other changes: %w", ctx.Err())
	}
}

func (t *turns) join(name string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, found := t.taken[name]
	if !found {
		one = &turn{change: make(chan struct{}, 1)}
		t.taken[name] = one
	}
	one.callers++
	return one
}

func (t *turns) leave(name string, one *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one.callers--; one.callers == 0 {
		delete(t.taken, name)
	}
}
