// Package commit makes optimistic changes of values in a store; its API may change at
// any time. It reads, edits, and writes unless the value has changed in between; then it
// begins again, until the change took effect exactly once or the time is up. Changes of
// one key that arrive at the same time take turns. The package knows neither the values
// nor the store.
package commit

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
	"github.com/pushfx/pushfx/module/stored"
)

// The waits between attempts: each is random between nothing and a bound that
// doubles from firstWait to longestWait. Random waits spread the writers that
// lost to the same winner; growing ones make room for as many as there are.
const (
	firstWait   = time.Millisecond
	longestWait = 64 * time.Millisecond
)

// maxFailures is how often a change is tried again although the store failed.
// Clients of stores repeat on their own; this is for the answer that got lost.
const maxFailures = 2

// Snapshot is what a store holds under one key at one moment. It does not change.
type Snapshot[V, R any] struct {
	Found    bool            // whether anything is stored
	Value    V               // the zero V if nothing is stored; a changed copy leaves it as it was
	Revision stored.Revision // of the write that made the value so
	Raw      R               // the form in which the store keeps the value, with the revision
}

// Update is a value to be stored in place of a snapshot, with the revision of its write.
type Update[V, R any] struct {
	Key      string
	Old      Snapshot[V, R]
	Next     V
	Revision stored.Revision
}

// Access is how a committer reaches its store.
type Access[V, R any] struct {
	Read func(ctx context.Context, key string) (Snapshot[V, R], error)

	// Cached returns what may still be stored, to begin a change with instead of a
	// read. The write counts only if it is what is stored. Nil if nothing is cached.
	Cached func(key string) (Snapshot[V, R], bool)

	// Same reports whether to store next would change nothing.
	Same func(old Snapshot[V, R], next V) bool

	// Write stores an update and returns what is stored then, if the old snapshot is
	// still stored; done is false if it is not. An error of kind
	// [fault.Unavailable] may have taken effect nevertheless, any other has
	// changed nothing.
	Write func(ctx context.Context, u Update[V, R]) (now Snapshot[V, R], done bool, err error)

	// Turn returns the name by which changes of a key take turns: keys that share a
	// revision share it. Nil if it is the key.
	Turn func(key string) string
}

// Committer makes the changes of one store. It is safe for concurrent use,
// starts no goroutines, and holds nothing for a key without a change under way.
type Committer[V, R any] struct {
	access Access[V, R]
	tell   func(observe.Event)
	now    func() time.Time
	mode   Mode
	writer string // names this committer in revisions
	writes atomic.Int64
	turns  *turns
}

// Mode says when a change counts as made.
type Mode int

const (
	// Written is when the value is stored.
	Written Mode = iota

	// Confirmed is when a write of this very change succeeded. What was found to
	// be stored already is written again, since it may not be confirmed.
	Confirmed
)

// New returns a committer of the values of a store.
func New[V, R any](access Access[V, R], mode Mode) *Committer[V, R] {
	if access.Turn == nil {
		access.Turn = func(key string) string { return key }
	}
	return &Committer[V, R]{
		access: access, mode: mode, tell: func(observe.Event) {}, now: time.Now,
		writer: rand.Text()[:writerLength], turns: newTurns(),
	}
}

// Tell has the committer tell of lost races and unknown outcomes. Call it before
// the first change.
func (c *Committer[V, R]) Tell(tell func(observe.Event)) { c.tell = tell }

// Now gives the committer the store's clock, for versions; see [stored.Revision]. By default
// it is the host's. No change depends on it: a clock that is wrong by days only
// makes the versions of values that are deleted and made anew go back. Call it
// before the first change.
func (c *Committer[V, R]) Now(now func() time.Time) { c.now = now }

// ErrOutcomeUnknown is for a change that was written, but nobody can tell any more
// whether the write took effect: its answer was lost, and so many others have
// written since that the revision has dropped it, if it was ever there.
var ErrOutcomeUnknown = errors.New("whether the change was made is not known: too many others wrote since")

// writerLength makes writers differ: 13 letters of 5 bits.
const writerLength = 13

// pendingWrite is a write whose outcome is not known.
type pendingWrite struct {
	number int64
	onto   stored.Revision

	// refused says that the store has answered not to have made it, since what was
	// cached is not stored any more. It was made nevertheless if the client has sent it
	// twice, because the first answer got lost. Then the revision still has it: it is
	// read right after. That others have written long before tells nothing.
	refused bool
}

// Commit changes the value of a key with edit, after the changes of the key that came
// before, and returns what is stored then.
//
// Edit must be pure, because it may run more than once. Its error changes nothing and is
// returned as it is. Of the other errors, those of kind [fault.Unavailable] and those
// that wrap ctx's may leave open whether the change is made.
func (c *Committer[V, R]) Commit(ctx context.Context, key string, edit func(*V) error) (Snapshot[V, R], error) {
	release, err := c.turns.take(ctx, c.access.Turn(key))
	if err != nil {
		return Snapshot[V, R]{}, err
	}
	defer release()
	e := &editing[V, R]{key: key, edit: edit}
	if err := c.commit(ctx, e); err != nil {
		return Snapshot[V, R]{}, err
	}
	return e.now, e.refused
}

// editing is a call of [Committer.Commit].
type editing[V, R any] struct {
	key     string
	edit    func(*V) error
	pending []pendingWrite
	now     Snapshot[V, R] // what is stored, once the change is done
	refused error          // the error of edit, likewise
}

// commit repeats the attempts of a change until one took effect or it fails for
// good. Lost races have no limit but ctx: with enough writers every fixed count
// is too low. When ctx ends first, the error is that of the last attempt, or
// wraps ctx's if it only lost its race.
func (c *Committer[V, R]) commit(ctx context.Context, e *editing[V, R]) error {
	if done, err := c.writeCached(ctx, e); err != nil || done {
		return err
	}
	failures := 0
	for bound := firstWait; ; bound = min(2*bound, longestWait) {
		done, err := c.attempt(ctx, e)
		switch {
		case err == nil && done:
			return nil
		case err != nil && (!mayHaveTakenEffect(err) || failures == maxFailures || ctx.Err() != nil):
			return err
		case err != nil:
			failures++
			c.tell(observe.UnknownOutcome)
		default:
			c.tell(observe.LostRace)
		}
		if ended := retry.Sleep(ctx, mathrand.N(bound)); ended != nil {
			return cmp.Or(err, fmt.Errorf("lost every race for the write: %w", ended))
		}
	}
}

// writeCached tries to write in the place of the cached value, without a read. It
// decides nothing else: a change that is refused there, or changes nothing, may do
// otherwise to what is stored.
func (c *Committer[V, R]) writeCached(ctx context.Context, e *editing[V, R]) (done bool, err error) {
	if c.access.Cached == nil {
		return false, nil
	}
	snapshot, found := c.access.Cached(e.key)
	if !found {
		return false, nil
	}
	next, err := c.prepare(snapshot, e)
	if err != nil || !next.writes {
		return false, nil
	}
	done, err = c.write(ctx, snapshot, next, e)
	switch {
	case err != nil && (!mayHaveTakenEffect(err) || ctx.Err() != nil):
		return false, err
	case err != nil:
		c.tell(observe.UnknownOutcome)
	case !done:
		e.pending[len(e.pending)-1].refused = true
		c.tell(observe.StaleCache)
	}
	return done, nil
}

// attempt reads, edits and writes once.
func (c *Committer[V, R]) attempt(ctx context.Context, e *editing[V, R]) (done bool, err error) {
	snapshot, err := c.access.Read(ctx, e.key)
	if err != nil {
		return false, err
	}
	next, err := c.prepare(snapshot, e)
	if err != nil {
		return false, err
	}
	return c.write(ctx, snapshot, next, e)
}

// write writes what was prepared in place of a snapshot. Where there is nothing to
// write, it is done.
func (c *Committer[V, R]) write(ctx context.Context, old Snapshot[V, R], n next[V], e *editing[V, R]) (done bool, err error) {
	now := old
	if n.writes {
		w := pendingWrite{number: c.writes.Add(1), onto: old.Revision}
		e.pending = append(e.pending, w)
		now, done, err = c.access.Write(ctx, Update[V, R]{e.key, old, n.value, c.revision(w, n.same)})
		if err != nil || !done {
			return false, err
		}
	}
	e.now, e.refused = now, n.refused
	return true, nil
}

// next is what an attempt comes to.
type next[V any] struct {
	value   V
	same    bool  // it is the value of the snapshot
	writes  bool  // it is to be written
	refused error // of the edit
}

// prepare returns what is to become of a snapshot.
//
// A pending write that took effect has made the change, and is known by the revision.
// One that may still do so needs no care: its snapshot is still what is stored,
// so the edit, being pure, comes to the same result, and of the two writes
// only one can succeed. If the revision may have dropped a write, nobody can tell.
func (c *Committer[V, R]) prepare(s Snapshot[V, R], e *editing[V, R]) (n next[V], err error) {
	last := s.Revision.Last(c.writer)
	if slices.ContainsFunc(e.pending, func(w pendingWrite) bool { return w.number == last }) {
		return next[V]{value: s.Value, same: true, writes: c.mode == Confirmed}, nil
	}
	if slices.ContainsFunc(e.pending, func(w pendingWrite) bool { return !w.refused && s.Revision.MayHaveDropped(w.onto) }) {
		return n, ErrOutcomeUnknown
	}
	e.pending = slices.DeleteFunc(e.pending, func(w pendingWrite) bool { return !w.onto.Equal(s.Revision) })
	n.value = s.Value
	if n.refused = e.edit(&n.value); n.refused != nil {
		return n, nil
	}
	n.same = c.access.Same(s, n.value)
	n.writes = c.mode == Confirmed || !n.same
	return n, nil
}

// NextRevision returns the revision for a write that the caller makes on its own, in the
// place of values of which onto is the revision with the greatest version. What was
// prepared for one of those can no longer take effect then.
func (c *Committer[V, R]) NextRevision(onto stored.Revision) stored.Revision {
	now := c.now()
	return onto.Next(versionAfter(onto, now), stored.Write{Writer: c.writer, Attempt: c.writes.Add(1)})
}

// revision is that of a write. A write of the same value has the same version.
func (c *Committer[V, R]) revision(w pendingWrite, same bool) stored.Revision {
	now, version := c.now(), w.onto.Version
	if !same {
		version = versionAfter(w.onto, now)
	}
	return w.onto.Next(version, stored.Write{Writer: c.writer, Attempt: w.number})
}

// ErrNotConfirmed is in the error of an [Update] that was stored, but not confirmed
// as its store is asked to. It is not tried again: that would only wait again.
var ErrNotConfirmed = errors.New("the change is stored, but not confirmed")

// mayHaveTakenEffect reports whether a failed attempt may have changed the store all
// the same: the store was reached, but its answer got lost.
func mayHaveTakenEffect(err error) bool {
	if errors.Is(err, ErrNotConfirmed) {
		return false
	}
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" {
		return false
	}
	return fault.KindOf(err) == fault.Unavailable
}

// maxStep is by how much a version grows at most if the clock is behind it, in
// microseconds. It is random, so that changes which the store has lost do not
// share their versions with those that come instead.
const maxStep = 1000

// versionAfter returns the version of a change at a time onto a revision.
func versionAfter(r stored.Revision, now time.Time) int64 {
	if version := now.UnixMicro(); version > r.Version {
		return version
	}
	return r.Version + 1 + mathrand.Int64N(maxStep)
}
