package rediscommit

import (
	"context"
	"fmt"
	"sync"
)

// parts lets one change at a time happen to values that share a Redis key. They
// share its revision, too, which remembers no more than the last write of each
// writer: a write that followed at once would hide whether the one before took
// effect, if its reply was lost.
type parts struct {
	mu   sync.Mutex
	busy map[string]*part // by Redis key
}

type part struct {
	turn    chan struct{} // is full while a change is under way
	callers int
}

func newParts() *parts { return &parts{busy: map[string]*part{}} }

// take waits for the turn of a key, which ends with release.
func (p *parts) take(ctx context.Context, key string) (release func(), err error) {
	one := p.join(key)
	select {
	case one.turn <- struct{}{}:
		return func() {
			<-one.turn
			p.leave(key, one)
		}, nil
	case <-ctx.Done():
		p.leave(key, one)
		return nil, fmt.Errorf("waited for other changes: %w", ctx.Err())
	}
}

func (p *parts) join(key string) *part {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, found := p.busy[key]
	if !found {
		one = &part{turn: make(chan struct{}, 1)}
		p.busy[key] = one
	}
	one.callers++
	return one
}

func (p *parts) leave(key string, one *part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.callers--; one.callers == 0 {
		delete(p.busy, key)
	}
}
