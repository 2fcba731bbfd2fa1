package commit

import (
	"context"
	"fmt"
	"sync"
)

// keyLocks is a set of named locks that admit callers in order of arrival. A revision
// remembers only the last write of each writer, so a committer must make its changes
// one by one: a second write would hide whether a first write with a lost reply took
// effect.
type keyLocks struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	holder  chan struct{} // full while the lock is taken
	callers int           // the holder and the waiters
}

func newKeyLocks() *keyLocks { return &keyLocks{locks: map[string]*keyLock{}} }

func (k *keyLocks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l := k.join(name)
	select {
	case l.holder <- struct{}{}:
		return func() {
			<-l.holder
			k.leave(name, l)
		}, nil
	case <-ctx.Done():
		k.leave(name, l)
		return nil, fmt.Errorf("waited for other changes: %w", ctx.Err())
	}
}

func (k *keyLocks) join(name string) *keyLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, found := k.locks[name]
	if !found {
		l = &keyLock{holder: make(chan struct{}, 1)}
		k.locks[name] = l
	}
	l.callers++
	return l
}

func (k *keyLocks) leave(name string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.callers--; l.callers == 0 {
		delete(k.locks, name)
	}
}
