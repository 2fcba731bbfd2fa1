// Package parts makes calls for many users. The users' storage has parts, for example the
// masters of a cluster. A part that does not answer delays its own users alone.
package parts

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

// Groups returns the users of each part.
type Groups func(ctx context.Context, users []mxid.UserID) [][]mxid.UserID

// Size divides a call.
type Size struct {
	Chunk  int // users
	AtOnce int // chunks of a part
}

// Do calls do for chunks of the users of a part, in their order, and for the parts side by
// side. After a chunk without an answer, it calls do no more for the part. It returns the
// users for whom do was not called. The context of do is from [retry.LeaveSilent].
func Do(
	ctx context.Context, groups Groups, users []mxid.UserID, size Size, do func(ctx context.Context, chunk []mxid.UserID) (answered bool),
) (left []mxid.UserID) {
	ctx = retry.LeaveSilent(ctx)
	if len(users) == 1 {
		do(ctx, users)
		return nil
	}
	parts := groups(ctx, users)
	var all sync.WaitGroup
	for i := range parts {
		all.Go(func() { parts[i] = doPart(ctx, parts[i], size, do) })
	}
	all.Wait()
	return slices.Concat(parts...)
}

// doPart is Do for the users of a part.
func doPart(ctx context.Context, todo []mxid.UserID, size Size, do func(context.Context, []mxid.UserID) bool) (left []mxid.UserID) {
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
