package main

import (
	"context"
	"sync"
)

// workers is how many changes are made at a time.
const workers = 16

// parallel calls do for each of all, some at a time, until one fails. It returns
// the results of those that did not fail, in the order of all.
func parallel[T, R any](ctx context.Context, all []T, do func(context.Context, T) (R, error)) ([]R, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results := make([]*R, len(all))
	var working sync.WaitGroup
	places := make(chan struct{}, workers)
	for i, one := range all {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		working.Go(func() {
			defer func() { <-places }()
			result, err := do(ctx, one)
			if err != nil {
				stop(err)
				return
			}
			results[i] = &result
		})
	}
	working.Wait()
	done := make([]R, 0, len(all))
	for _, result := range results {
		if result != nil {
			done = append(done, *result)
		}
	}
	return done, context.Cause(ctx)
}
