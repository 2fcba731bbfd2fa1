package main

import (
	"context"
	"io"
	"sync"
)

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *lockedWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(text)
}

// atATime calls do for each of all, n at a time, until one fails.
func atATime[T any](ctx context.Context, n int, all []T, do func(context.Context, T) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var working sync.WaitGroup
	places := make(chan struct{}, n)
	for _, one := range all {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		working.Go(func() {
			defer func() { <-places }()
			if err := do(ctx, one); err != nil {
				stop(err)
			}
		})
	}
	working.Wait()
	return context.Cause(ctx)
}
