package main

import (
	"context"
	"sync"
	"time"
)

const (
	atOnce      = 1               // requests of a key that are served at the same time
	lineTimeout = 5 * time.Second // how long more of them wait
)

// turns has a few requests of a key served at a time.
type turns struct {
	mu    sync.Mutex
	lines map[string]*line // of keys with requests
}

// line is the requests of a key.
type line struct {
	turn    chan struct{} // has room for those that are served
	present int
}

func newTurns() *turns { return &turns{lines: map[string]*line{}} }

// take waits for the turn of a request, for a while. Leave gives it back.
func (t *turns) take(ctx context.Context, key string) (leave func(), err error) {
	l := t.enter(key)
	select {
	case l.turn <- struct{}{}:
	default:
		if err := l.wait(ctx); err != nil {
			t.leave(key)
			return nothing, err
		}
	}
	return func() { <-l.turn; t.leave(key) }, nil
}

func (l *line) wait(ctx context.Context) error {
	timer := time.NewTimer(lineTimeout)
	defer timer.Stop()
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return tooMany(lineTimeout)
	}
}

func (t *turns) enter(key string) *line {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines[key] == nil {
		t.lines[key] = &line{turn: make(chan struct{}, atOnce)}
	}
	t.lines[key].present++
	return t.lines[key]
}

func (t *turns) leave(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines[key].present--; t.lines[key].present == 0 {
		delete(t.lines, key)
	}
}
