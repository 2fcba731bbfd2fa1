// Package commit changes values in a store by optimistic compare-and-set; its API may
// change at any time. A change reads a value, edits it, and writes it if the stored
// value has not changed since. After a lost race, the change starts over. It never
// takes effect twice. Concurrent changes of one key wait for each other.
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

// After a lost race, a change waits a random time, up to a bound that doubles from
// firstWait to maxWait. Random waits spread the losers of one race.
const (
	firstWait = time.Millisecond
	maxWait   = 64 * time.Millisecond
)

// maxFailures bounds the retries after lost replies. The store's client retries other
// failures itself.
const maxFailures = 2

// Snapshot is the stored state of one key at one moment. It is immutable.
type Snapshot[V, R any] struct {
	Found    bool            // whether a value is stored
	Value    V               // zero if none is stored; edits work on a copy
	Revision stored.Revision // of the latest write
	Raw      R               // the stored form, revision included
}

// Update replaces the value of a snapshot.
type Update[V, R any] struct {
	Key      string
	Old      Snapshot[V, R]
	Next     V
	Revision stored.Revision // of this write
}

// Access connects a committer to its store.
type Access[V, R any] struct {
	Read func(ctx context.Context, key string) (Snapshot[V, R], error)

	// Cached returns a snapshot that may be stale. A change first edits this snapshot
	// instead of reading; if the snapshot is stale, Write is refused. Nil without a cache.
	Cached func(key string) (Snapshot[V, R], bool)

	// Same reports whether storing next would change nothing.
	Same func(old Snapshot[V, R], next V) bool

	// Write stores an update and returns the new snapshot. Done is false if the old
	// snapshot is no longer stored. After an error of kind [fault.Unavailable] the
	// update may be stored; after any other error it is not.
	Write func(ctx context.Context, u Update[V, R]) (now Snapshot[V, R], done bool, err error)
}

// Committer changes the values of one store. It is safe for concurrent use, starts no
// goroutines, and keeps no state of idle keys.
type Committer[V, R any] struct {
	access Access[V, R]
	notify func(observe.Event)
	now    func() time.Time
	mode   Mode
	writer string // identifies this committer in revisions
	writes atomic.Int64
	locks  *keyLocks
}

// Mode says when a change is complete.
type Mode int

const (
	// Written means that the value is stored.
	Written Mode = iota

	// Confirmed means that a write of this change succeeded. An unchanged value is written
	// again, because its earlier write may be unconfirmed.
	Confirmed
)

// New returns a committer for a store.
func New[V, R any](access Access[V, R], mode Mode) *Committer[V, R] {
	return &Committer[V, R]{
		access: access, mode: mode, notify: func(observe.Event) {}, now: time.Now,
		writer: rand.Text()[:writerLength], locks: newKeyLocks(),
	}
}

// OnEvent sets the receiver of lost races, unknown outcomes and stale cache hits. Call
// it before the first change.
func (c *Committer[V, R]) OnEvent(notify func(observe.Event)) { c.notify = notify }

// SetClock sets the clock for versions, by default the host's; see [stored.Revision].
// With a wrong clock, the version of a value that was deleted and created again may go
// back; changes stay correct. Call it before the first change.
func (c *Committer[V, R]) SetClock(now func() time.Time) { c.now = now }

// ErrOutcomeUnknown is the error of a change that may or may not be stored: the reply
// to its write was lost, and after many other writes the revision may no longer name
// it.
var ErrOutcomeUnknown = errors.New("cannot tell whether the change was made: too many other writes followed")

// writerLength is 13 letters of 5 random bits.
const writerLength = 13

// pendingWrite is a write with an unknown outcome.
type pendingWrite struct {
	number int64
	base   stored.Revision // the revision that the write replaces

	// refused means that the store rejected the write, because base was a stale revision
	// from the cache. The Redis client may have sent the write twice, and the first sending
	// may have taken effect: then the next revision lists the write. If it does not, the
	// write has had no effect. [stored.Revision.MayHaveDropped] is not asked about it: base
	// is stale, so all writers since then would seem to have come after the write.
	refused bool
}

// Commit changes the value of a key with edit and returns the new snapshot. Earlier
// changes of the key come first.
//
// Edit must be pure, because it may run more than once. Its error is returned
// unchanged, and then nothing has changed. After an error of kind [fault.Unavailable],
// or one that wraps the error of ctx, the change may have been made.
func (c *Committer[V, R]) Commit(ctx context.Context, key string, edit func(*V) error) (Snapshot[V, R], error) {
	unlock, err := c.locks.lock(ctx, key)
	if err != nil {
		return Snapshot[V, R]{}, err
	}
	defer unlock()
	ch := &change[V, R]{key: key, edit: edit}
	if err := c.commit(ctx, ch); err != nil {
		return Snapshot[V, R]{}, err
	}
	return ch.now, ch.editErr
}

type change[V, R any] struct {
	key     string
	edit    func(*V) error
	pending []pendingWrite
	guess   *guess[V, R]
	now     Snapshot[V, R] // after the change
	editErr error
}

// guess is an edit of the cached snapshot that needs no write. It counts if the snapshot
// is still stored.
type guess[V, R any] struct {
	of     Snapshot[V, R]
	result prepared[V]
}

// commit repeats attempts until one takes effect or fails for good. Only ctx limits
// lost races, because any fixed count is too low for enough writers.
func (c *Committer[V, R]) commit(ctx context.Context, ch *change[V, R]) error {
	if done, err := c.writeCached(ctx, ch); err != nil || done {
		return err
	}
	failures := 0
	for bound := firstWait; ; bound = min(2*bound, maxWait) {
		done, err := c.attempt(ctx, ch)
		switch {
		case err == nil && done:
			return nil
		case err != nil && (!mayHaveTakenEffect(err) || failures == maxFailures || ctx.Err() != nil):
			return err
		case err != nil:
			failures++
			c.notify(observe.UnknownOutcome)
		default:
			c.notify(observe.LostRace)
		}
		if ended := retry.Sleep(ctx, mathrand.N(bound)); ended != nil {
			return cmp.Or(err, fmt.Errorf("lost every race for the write: %w", ended))
		}
	}
}

// writeCached tries to replace the cached snapshot without a read. It keeps a refusal by
// the edit and an unchanged value as a guess, because the cached value may be stale. After a
// lost race or an unknown outcome it is not done: the pending write is noted by then, so the
// attempt that follows recognizes it in what it reads.
func (c *Committer[V, R]) writeCached(ctx context.Context, ch *change[V, R]) (done bool, err error) {
	if c.access.Cached == nil {
		return false, nil
	}
	snapshot, found := c.access.Cached(ch.key)
	if !found {
		return false, nil
	}
	next, err := c.prepare(snapshot, ch)
	if err != nil {
		return false, nil
	}
	if !next.needsWrite {
		ch.guess = &guess[V, R]{snapshot, next}
		return false, nil
	}
	done, err = c.write(ctx, snapshot, next, ch)
	switch {
	case err != nil && (!mayHaveTakenEffect(err) || ctx.Err() != nil):
		return false, err
	case err != nil:
		c.notify(observe.UnknownOutcome)
	case !done:
		ch.pending[len(ch.pending)-1].refused = true
		c.notify(observe.StaleCache)
	}
	return done, nil
}

func (c *Committer[V, R]) attempt(ctx context.Context, ch *change[V, R]) (done bool, err error) {
	snapshot, err := c.access.Read(ctx, ch.key)
	if err != nil {
		return false, err
	}
	next, err := c.prepare(snapshot, ch)
	if err != nil {
		return false, err
	}
	return c.write(ctx, snapshot, next, ch)
}

// write stores a prepared value if needed, and records the result.
func (c *Committer[V, R]) write(ctx context.Context, old Snapshot[V, R], p prepared[V], ch *change[V, R]) (done bool, err error) {
	now := old
	if p.needsWrite {
		w := pendingWrite{number: c.writes.Add(1), base: old.Revision}
		ch.pending = append(ch.pending, w)
		now, done, err = c.access.Write(ctx, Update[V, R]{ch.key, old, p.value, c.revision(w, p.same)})
		if err != nil || !done {
			return false, err
		}
	}
	ch.now, ch.editErr = now, p.editErr
	return true, nil
}

type prepared[V any] struct {
	value      V
	same       bool // equals the snapshot's value
	needsWrite bool
	editErr    error
}

// prepare edits a snapshot, unless its revision names a pending write: that write took
// effect.
//
// A pending write whose base is still stored is harmless: the pure edit gives the same
// value again, and only one of the two writes can succeed. If the revision may have
// dropped a pending write, the outcome is unknown.
func (c *Committer[V, R]) prepare(s Snapshot[V, R], ch *change[V, R]) (p prepared[V], err error) {
	last := s.Revision.Last(c.writer)
	if slices.ContainsFunc(ch.pending, func(w pendingWrite) bool { return w.number == last }) {
		return prepared[V]{value: s.Value, same: true, needsWrite: c.mode == Confirmed}, nil
	}
	if slices.ContainsFunc(ch.pending, func(w pendingWrite) bool { return !w.refused && s.Revision.MayHaveDropped(w.base) }) {
		return p, ErrOutcomeUnknown
	}
	ch.pending = slices.DeleteFunc(ch.pending, func(w pendingWrite) bool { return !w.base.Equal(s.Revision) })
	if g := ch.guess; g != nil && c.isStill(g.of, s) {
		return g.result, nil // the edit gives the same result again
	}
	p.value = s.Value
	if p.editErr = ch.edit(&p.value); p.editErr != nil {
		return p, nil
	}
	p.same = c.access.Same(s, p.value)
	p.needsWrite = c.mode == Confirmed || !p.same
	return p, nil
}

// isStill reports whether a cached snapshot and a snapshot that was just read are equal.
// An edit by hand may keep the revision.
func (c *Committer[V, R]) isStill(cached, read Snapshot[V, R]) bool {
	return cached.Found == read.Found && cached.Revision.Equal(read.Revision) && c.access.Same(read, cached.Value)
}

// NextRevision returns the revision for a write that the caller makes without the
// committer. Base is the replaced revision. If the write replaces several, base is the
// one with the greatest version. The write makes all writes fail that were prepared
// before it.
func (c *Committer[V, R]) NextRevision(base stored.Revision) stored.Revision {
	now := c.now()
	return base.Next(versionAfter(base, now), stored.Write{Writer: c.writer, Attempt: c.writes.Add(1)})
}

// revision returns the revision for a write. An unchanged value keeps its version.
func (c *Committer[V, R]) revision(w pendingWrite, same bool) stored.Revision {
	now, version := c.now(), w.base.Version
	if !same {
		version = versionAfter(w.base, now)
	}
	return w.base.Next(version, stored.Write{Writer: c.writer, Attempt: w.number})
}

// mayHaveTakenEffect reports whether a failed attempt may have changed the store: the
// request may have arrived, although the reply did not.
func mayHaveTakenEffect(err error) bool {
	if errors.Is(err, fault.ErrNotConfirmed) {
		return false
	}
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" {
		return false
	}
	return fault.KindOf(err) == fault.Unavailable
}

// maxStep bounds, in microseconds, the growth of a version while the clock is behind
// the version. The step is random, so that a change hardly ever reuses a version that
// the store has lost.
const maxStep = 1000

func versionAfter(r stored.Revision, now time.Time) int64 {
	if version := now.UnixMicro(); version > r.Version {
		return version
	}
	return r.Version + 1 + mathrand.Int64N(maxStep)
}
