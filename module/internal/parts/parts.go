// Package parts makes calls for many users. The users' storage has parts, for example the
// masters of a cluster. A part that does not answer delays its own users alone.
package parts

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	// patience is how long a call waits for an answer of a part while other parts answer. It
	// is at least twice the time of the slowest answer.
	patience = time.Second

	// probeFor is how long a call waits for a part that did not answer the last time.
	probeFor = 200 * time.Millisecond

	checkEvery = 50 * time.Millisecond
)

// Groups returns the users of each part.
type Groups func(ctx context.Context, users []mxid.UserID) [][]mxid.UserID

// Parts makes calls. It remembers a part that does not answer: while a call hangs there, the
// next ones leave it out. It is safe for concurrent use.
type Parts struct {
	groups Groups
	slow   time.Duration

	mu      sync.Mutex // also of all parts
	silent  []*silence
	hanging int       // calls that were left, and have not ended
	ended   sync.Cond // one of them has ended
}

// silence is a part that did not answer. User is one of its users.
type silence struct {
	user  mxid.UserID
	hangs int // calls that have left the part, and have not ended
}

// New returns a Parts. Slow is how much longer an answer may take that waits for replicas or
// a disk.
func New(groups Groups, slow time.Duration) *Parts {
	p := &Parts{groups: groups, slow: slow}
	p.ended.L = &p.mu
	return p
}

// Wait waits for the calls that were left.
func (p *Parts) Wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.hanging > 0 {
		p.ended.Wait()
	}
}

// Size divides a call.
type Size struct {
	Chunk  int // users
	AtOnce int // chunks of a part
}

// Do calls do for chunks of the users of a part, in their order, and for the parts side by
// side. After a chunk without an answer, it calls do no more for the part. It returns the
// users for whom do was not called, or has not returned in time: such a call of do may return
// after Do.
func (p *Parts) Do(ctx context.Context, users []mxid.UserID, size Size, do func(ctx context.Context, chunk []mxid.UserID) (answered bool)) (left []mxid.UserID) {
	all, left := p.split(ctx, users)
	if len(all) == 1 && len(left) == 0 && all[0].silence == nil {
		p.run(ctx, all[0], size, do)
		return all[0].todo
	}
	ended := make(chan struct{}, len(all))
	for _, one := range all {
		go func() {
			p.run(ctx, one, size, do)
			p.end(one)
			ended <- struct{}{}
		}()
	}
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for !p.areOver(all) {
		select {
		case <-ended:
		case <-check.C:
			p.leaveSilent(all)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range all {
		left = append(left, one.left...)
	}
	return left
}

// split returns the parts of users, and the users of parts that are left out.
func (p *Parts) split(ctx context.Context, users []mxid.UserID) (all []*part, left []mxid.UserID) {
	p.mu.Lock()
	silent := slices.Clone(p.silent)
	p.mu.Unlock()
	if len(users) == 1 && len(silent) == 0 {
		return []*part{{todo: users}}, nil
	}
	asked := make([]mxid.UserID, 0, len(silent)+len(users))
	for _, s := range silent {
		asked = append(asked, s.user)
	}
	groups := p.groups(ctx, append(asked, users...))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, group := range groups {
		one, hangs := &part{heard: time.Now()}, false
		for _, s := range silent {
			if at := slices.Index(group, s.user); at >= 0 {
				group = slices.Delete(group, at, at+1) // it is there twice if it is one of the users
				one.silence, hangs = s, hangs || s.hangs > 0
			}
		}
		if one.todo = group; hangs {
			left = append(left, group...)
		} else if len(group) > 0 {
			all = append(all, one)
		}
	}
	return all, left
}

// part has the users of a part in a call.
type part struct {
	silence *silence // nil if it answered the last time

	todo     []mxid.UserID // for whom do was not called
	flying   [][]mxid.UserID
	heard    time.Time // of the beginning or the latest answer
	answered bool
	slowest  time.Duration // answer
	isCut    bool          // do is called no more
	isOver   bool          // it has ended, or the call has left it
	left     []mxid.UserID // when it was over
}

func (p *Parts) run(ctx context.Context, one *part, size Size, do func(context.Context, []mxid.UserID) bool) {
	work := func() {
		for chunk := p.next(one, size.Chunk); len(chunk) > 0; chunk = p.next(one, size.Chunk) {
			began := time.Now()
			p.landed(one, chunk, began, do(ctx, chunk))
		}
	}
	var others sync.WaitGroup
	for range min(size.AtOnce, (len(one.todo)+size.Chunk-1)/size.Chunk) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

func (p *Parts) next(one *part, size int) (chunk []mxid.UserID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.isCut {
		return nil
	}
	size = min(size, len(one.todo))
	if chunk, one.todo = one.todo[:size], one.todo[size:]; size > 0 {
		one.flying = append(one.flying, chunk)
	}
	return chunk
}

func (p *Parts) landed(one *part, chunk []mxid.UserID, began time.Time, answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.flying = slices.DeleteFunc(one.flying, func(f []mxid.UserID) bool { return &f[0] == &chunk[0] })
	if !answered {
		one.isCut = true
		return
	}
	one.answered, one.heard, one.slowest = true, time.Now(), max(one.slowest, time.Since(began))
	p.silent = slices.DeleteFunc(p.silent, func(s *silence) bool { return s == one.silence })
}

func (p *Parts) end(one *part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !one.isOver {
		one.isOver, one.left = true, one.todo
		return
	}
	one.silence.hangs--
	p.hanging--
	p.ended.Broadcast()
}

func (p *Parts) areOver(all []*part) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(all, func(one *part) bool { return !one.isOver })
}

// leaveSilent leaves parts that do not answer.
func (p *Parts) leaveSilent(all []*part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slowest, hasAnswer := time.Duration(0), false
	for _, one := range all {
		slowest, hasAnswer = max(slowest, one.slowest), hasAnswer || one.answered
	}
	for _, one := range all {
		limit := max(patience, 2*slowest)
		if one.silence != nil {
			limit = probeFor
		}
		if !one.isOver && (hasAnswer || one.silence != nil) && time.Since(one.heard) >= limit+p.slow {
			p.leave(one)
		}
	}
}

func (p *Parts) leave(one *part) {
	one.isOver, one.isCut = true, true
	one.left = append(slices.Concat(one.flying...), one.todo...)
	if one.silence == nil {
		one.silence = &silence{user: one.left[0]}
	}
	if !slices.Contains(p.silent, one.silence) {
		p.silent = append(p.silent, one.silence)
	}
	one.silence.hangs++
	p.hanging++
}

// Load is [Parts.Do] for a lookup. It returns the results that came in time.
func Load[V any](
	ctx context.Context, p *Parts, users []mxid.UserID, size Size,
	load func(context.Context, []mxid.UserID) map[mxid.UserID]V, isAnswer func(V) bool,
) map[mxid.UserID]V {
	var mu sync.Mutex
	all, isOver := make(map[mxid.UserID]V, len(users)), false
	p.Do(ctx, users, size, func(ctx context.Context, chunk []mxid.UserID) (answered bool) {
		loaded := load(ctx, chunk)
		mu.Lock()
		defer mu.Unlock()
		for user, v := range loaded {
			if answered = answered || isAnswer(v); !isOver {
				all[user] = v
			}
		}
		return answered
	})
	mu.Lock()
	defer mu.Unlock()
	isOver = true
	return all
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
