// Package partition makes calls for many users, whose storage has partitions, for example the
// masters of a cluster. A partition that does not answer delays its own users alone.
package partition

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/retry"
)

// Func returns the users of each partition.
type Func func(ctx context.Context, users []mxid.UserID) [][]mxid.UserID

// Size divides a call.
type Size struct {
	Chunk  int // users
	AtOnce int // chunks of a partition
}

// Do calls do for chunks of the users of a partition, in their order, and for the partitions side
// by side. After a chunk without an answer, it calls do no more for the partition. It returns the
// users for whom do was not called. The context of do is from [retry.LeaveSilent].
func Do(
	ctx context.Context, partition Func, users []mxid.UserID, size Size, do func(ctx context.Context, chunk []mxid.UserID) (answered bool),
) (left []mxid.UserID) {
	ctx = retry.LeaveSilent(ctx)
	if len(users) == 1 {
		do(ctx, users)
		return nil
	}
	partitions := partition(ctx, users)
	var all sync.WaitGroup
	for i := range partitions {
		all.Go(func() { partitions[i] = doPartition(ctx, partitions[i], size, do) })
	}
	all.Wait()
	return slices.Concat(partitions...)
}

// doPartition is Do for the users of a partition.
func doPartition(ctx context.Context, todo []mxid.UserID, size Size, do func(context.Context, []mxid.UserID) bool) (left []mxid.UserID) {
	var mu sync.Mutex
	isAway := false
	next := func() (chunk []mxid.UserID) {
		mu.Lock()
		defer mu.Unlock()
		if !isAway {
			n := min(size.Chunk, len(todo))
			chunk, todo = todo[:n], todo[n:]
		}
		return chunk
	}
	var workers sync.WaitGroup
	for range min(size.AtOnce, (len(todo)+size.Chunk-1)/size.Chunk) {
		workers.Go(func() {
			for chunk := next(); len(chunk) > 0; chunk = next() {
				if !do(ctx, chunk) {
					mu.Lock()
					isAway = true
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	return todo
}

// Left collects the users who are left after a call. It is safe for concurrent use.
type Left struct {
	mu  sync.Mutex
	err module.LeftError
}

// Add adds users who are left for a reason.
func (l *Left) Add(reason error, users ...mxid.UserID) {
	if len(users) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	isUnconfirmed := errors.Is(reason, fault.ErrNotConfirmed)
	if !slices.ContainsFunc(l.err.Reasons, func(known error) bool { return errors.Is(known, fault.ErrNotConfirmed) == isUnconfirmed }) {
		if fault.KindOf(reason) != fault.Unavailable {
			reason = module.Unavailable(reason)
		}
		l.err.Reasons = append(l.err.Reasons, reason)
	}
	l.err.Users = append(l.err.Users, users...)
}

// Err returns a [module.LeftError] with the users that were added so far, or nil.
func (l *Left) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.err.Users) == 0 {
		return nil
	}
	users := slices.Clone(l.err.Users)
	slices.Sort(users)
	return &module.LeftError{Users: slices.Compact(users), Reasons: slices.Clone(l.err.Reasons)}
}
