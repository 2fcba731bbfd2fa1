package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
)

// maxBatch is how many changes are made together at most, so that none waits
// long for the edits of the others.
const maxBatch = 128

// caller is one call of [Committer.Commit].
type caller[V any] struct {
	ctx    context.Context
	edit   func(*V) error
	state  State[V]
	result error

	// turn gets the batch that a waiting caller is to lead, or nil when another
	// has made its change.
	turn chan *batch[V]
}

// batch is changes of one key that are made together, in the order in which
// they came.
type batch[V any] struct {
	callers []*caller[V]
	leader  *caller[V] // the one of the callers on whose goroutine it is made
	state   State[V]   // what the key holds, once the batch took effect
	results []error    // of each caller's edit, likewise
}

// errUnfinished is what callers get whose leader panicked.
var errUnfinished = errors.New("the change was not finished")

// Commit changes the value of a key with edit. While another change of the key
// is under way it waits; then one of those who wait makes the changes of all:
// each edit gets what the one before it left. The state is what the key holds
// after all of them.
//
// Edit must be pure. It may run more than once, on the goroutine of another
// caller, and still when Commit has returned because ctx has ended; what it
// left behind counts only where Commit returns nil. Its error changes nothing
// and is returned as it is. Of the other errors, those of kind
// [fault.Unavailable] and those that wrap ctx's may leave open whether the
// change is made.
func (c *Committer[V, C]) Commit(ctx context.Context, key string, edit func(*V) error) (State[V], error) {
	me := &caller[V]{ctx: ctx, edit: edit}
	b := c.begin(key, me)
	if b == nil {
		var err error
		if b, err = c.wait(key, me); err != nil {
			return State[V]{}, err
		}
	}
	if b != nil {
		c.lead(ctx, key, b)
	}
	if p, panicked := me.result.(*editPanic); panicked {
		panic(p)
	}
	return me.state, me.result
}

// begin returns the batch that the caller is to lead at once, or queues it and
// returns nil.
func (c *Committer[V, C]) begin(key string, me *caller[V]) *batch[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting, busy := c.queues[key]
	if busy {
		me.turn = make(chan *batch[V], 1)
		c.queues[key] = append(waiting, me)
		return nil
	}
	c.queues[key] = nil
	return &batch[V]{callers: []*caller[V]{me}, leader: me}
}

// wait returns when it is the caller's turn to lead a batch, or with nil when
// another has made its change.
func (c *Committer[V, C]) wait(key string, me *caller[V]) (*batch[V], error) {
	select {
	case b := <-me.turn:
		return b, nil
	case <-me.ctx.Done():
	}
	if c.leave(key, me) {
		return nil, fmt.Errorf("waited for other changes: %w", me.ctx.Err())
	}
	select {
	case b := <-me.turn:
		return b, nil
	default:
		return nil, fmt.Errorf("the change is under way: %w", me.ctx.Err())
	}
}

// leave takes a caller out of the queue; false says that it is not there.
func (c *Committer[V, C]) leave(key string, me *caller[V]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.queues[key]
	i := slices.Index(waiting, me)
	if i < 0 {
		return false
	}
	c.queues[key] = slices.Delete(waiting, i, i+1)
	return true
}

// lead makes the changes of a batch and hands the key on.
func (c *Committer[V, C]) lead(ctx context.Context, key string, b *batch[V]) {
	stop := func() {}
	if len(b.callers) > 1 {
		ctx, stop = b.context()
	}
	err := errUnfinished
	defer func() {
		stop()
		b.finish(err)
		c.handOn(key)
	}()
	err = c.commit(ctx, key, b)
}

// context returns one that ends when those of all callers have. A caller that
// goes away early does not take the changes of the others with it.
func (b *batch[V]) context() (context.Context, context.CancelFunc) {
	deadline := endOf(b.leader.ctx)
	ctx, cancel := context.WithDeadline(context.WithoutCancel(b.leader.ctx), deadline)
	var present atomic.Int64
	present.Store(int64(len(b.callers)))
	stops := make([]func() bool, len(b.callers))
	for i, caller := range b.callers {
		stops[i] = context.AfterFunc(caller.ctx, func() {
			// At the deadline it ends by itself, with the right error.
			if present.Add(-1) == 0 && time.Now().Before(deadline) {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// finish tells the callers what became of their changes.
func (b *batch[V]) finish(err error) {
	for i, caller := range b.callers {
		caller.result = err
		if err == nil {
			caller.state, caller.result = b.state, b.results[i]
		}
		if caller != b.leader {
			caller.turn <- nil
		}
	}
}

// handOn gives those who wait for the key their turn.
func (c *Committer[V, C]) handOn(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.queues[key]
	if len(waiting) == 0 {
		delete(c.queues, key)
		return
	}
	n := min(len(waiting), maxBatch)
	c.queues[key] = slices.Clone(waiting[n:])
	b := &batch[V]{callers: waiting[:n:n]}
	b.leader = slices.MaxFunc(b.callers, byDeadline)
	b.leader.turn <- b
}

// byDeadline has the caller lead who may take longest: all the others are gone
// when its time is up.
func byDeadline[V any](x, y *caller[V]) int {
	return endOf(x.ctx).Compare(endOf(y.ctx))
}

func endOf(ctx context.Context) time.Time {
	if deadline, found := ctx.Deadline(); found {
		return deadline
	}
	return time.Unix(1<<62, 0)
}

// edit runs the edits of all callers in turn. One that fails changes nothing.
func (b *batch[V]) edit(value V) (V, []error) {
	results := make([]error, len(b.callers))
	for i, caller := range b.callers {
		next := value
		if results[i] = caller.run(&next); results[i] == nil {
			value = next
		}
	}
	return value, results
}

// run edits, and returns a panic as an error, for the goroutine of its caller.
func (c *caller[V]) run(value *V) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &editPanic{p, debug.Stack()}
		}
	}()
	return c.edit(value)
}

// editPanic is a panic of an edit.
type editPanic struct {
	value any
	stack []byte
}

func (p *editPanic) Error() string { return fmt.Sprintf("%v\n\n%s", p.value, p.stack) }
