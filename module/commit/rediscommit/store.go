// Package rediscommit is package commit on Redis: the one place that holds the
// compare-and-set of the stores, and its durability. A store adds how its
// values are laid out.
//
// It works on Redis 6.2 or later as a single node, behind sentinels and as a
// cluster, with any number of hosts on one Redis. Each script has one key, so it
// never crosses slots, and works while a cluster moves the slot. To scripts, values
// are opaque bytes.
package rediscommit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/stored"
)

// Layout says how the values of a store are kept, each under a key of its own.
type Layout[V any] struct {
	// RedisKey returns the key on Redis, for [Layout.Swap], of a value's key with
	// its prefix. It is for values that are a part of what one Redis key holds;
	// both keys have the same hash tag. Nil if they are the same.
	RedisKey func(key string) string

	// Name is that of the store, for errors.
	Name string

	// Observed is what an observer knows it by: a name of package observe.
	Observed string

	// Read asks the client for a key, and returns what reads the answer, which
	// is there at once, or when the pipeline that is the client was executed.
	// Errors are those of the client, or faults.
	Read func(ctx context.Context, client redis.Cmdable, key string) func() (Stored[V], error)

	// Swap is a Lua script that stores a value if what is stored is what was
	// read. It gets the key and the arguments of a [Change], and returns 1 if it
	// did and 0 if not.
	Swap string

	// Unreadable makes the fault for a value that cannot be read.
	Unreadable func(cause error) error

	// Missing is what Read finds where nothing is stored. If it is not nil, a change
	// of what is not cached begins with it, and only reads if that is wrong: for
	// values that are mostly made anew. On a cluster it reads in any case, since
	// another master may have the key.
	Missing Stored[V]
}

func (l Layout[V]) redisKey(key string) string {
	if l.RedisKey == nil {
		return key
	}
	return l.RedisKey(key)
}

// Stored is what was read or written, with the revision that is a part of it: a
// [commit.Snapshot]. It does not change.
type Stored[V any] interface {
	// Exists reports whether anything is stored.
	Exists() bool

	Value() V
	Revision() stored.Revision
	Change(next V) Change[V]

	// IsCurrent asks the client whether this is stored still, in the way of
	// [Layout.Read], and without moving the value.
	IsCurrent(ctx context.Context, client redis.Cmdable, key string) func() (bool, error)

	// Bytes is about how much memory it takes, 0 for what has no revision, by which
	// IsCurrent could tell it from others.
	Bytes() int
}

// Change is a value to be stored in the place of a [Stored].
type Change[V any] interface {
	commit.Change

	// Args are the arguments for the script that stores it with a revision.
	Args(revision stored.Revision) []any

	// Stored is what is stored then.
	Stored(revision stored.Revision) Stored[V]
}

// Store loads and updates values on Redis. It is safe for concurrent use, does
// no I/O of its own accord, and needs no closing.
type Store[V any] struct {
	layout Layout[V]
	cfg    Config
	with   Options
	client redis.UniversalClient
	nodes  *nodes
	reads  *pipelines
	writer *Writer
	swap   *redis.Script

	cache     *cache[V]
	committer *commit.Committer[V, Change[V]]
}

// New returns a store on client, which stays the caller's. The client must read
// from masters.
func New[V any](client redis.UniversalClient, cfg Config, o Options, layout Layout[V]) (*Store[V], error) {
	if err := errors.Join(cfg.Validate(), cfg.Durability.fits(client)); err != nil {
		return nil, fmt.Errorf("%s: %w", layout.Name, err)
	}
	o.Observer = observe.Or(o.Observer)
	nodes := newNodes(client, o.Waits)
	s := &Store[V]{
		layout: layout, cfg: cfg, with: o, client: client, nodes: nodes, reads: newPipelines(nodes),
		writer: newWriter(nodes, layout.Name, layout.Observed, cfg, o.Observer), swap: redis.NewScript(layout.Swap),
		cache: newCache[V](cfg.CacheBytes),
	}
	s.committer = s.newCommitter()
	return s, nil
}

// View returns a store of parts of the same values, with a layout that has
// [Layout.RedisKey], and else differs in how values are read and changed.
func (s *Store[V]) View(layout Layout[V]) *Store[V] {
	view := *s
	view.layout = layout
	view.committer = view.newCommitter()
	return &view
}

func (s *Store[V]) newCommitter() *commit.Committer[V, Change[V]] {
	mode := commit.Written
	if s.cfg.Durability.isAsked() {
		mode = commit.Confirmed
	}
	committer := commit.New(commit.Access[V, Change[V]]{Read: s.snapshot, Cached: s.cached, Write: s.write, Turn: s.layout.redisKey}, mode)
	if s.with.Now != nil {
		committer.Now(s.with.Now)
	}
	committer.Tell(func(event observe.Event) { s.with.Observer.Count(event, s.layout.Observed, 1) })
	return committer
}

// removeScript removes the key, whatever it holds.
var removeScript = redis.NewScript(`redis.call('DEL', KEYS[1]) return 1`)

// Load returns what is stored under a key, the zero V if nothing is. Before it says
// so, it asks every master of a cluster, which may have the key after a move of its
// slot that was interrupted. The key is given without its prefix. Errors: [module.Unavailable], the
// layout's Unreadable.
func (s *Store[V]) Load(ctx context.Context, key string) (commit.State[V], error) {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	stored, err := s.readVerified(ctx, s.cfg.KeyPrefix+key)
	if err != nil {
		return commit.State[V]{}, err
	}
	return commit.State[V]{Value: stored.Value(), Revision: stored.Revision()}, nil
}

// Loaded is what [Store.LoadMany] found under one key.
type Loaded[V any] struct {
	commit.State[V]
	Err error // as that of [Store.Load]
}

// Update changes what is stored under a key, and returns it as it is then; see
// [commit.Committer.Commit]. Errors: those of edit, of the layout's changes,
// and of Load.
func (s *Store[V]) Update(ctx context.Context, key string, edit func(*V) error) (commit.State[V], error) {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	key = s.cfg.KeyPrefix + key
	state, err := s.committer.Commit(ctx, key, edit)
	if errors.Is(err, commit.ErrOutcomeUnknown) || err != nil && ctx.Err() != nil && fault.KindOf(err) == fault.Internal {
		err = s.unavailable("update", err)
	}
	return state, err
}

// Remove removes a key, whatever it holds, as durably as a change. A change
// that is under way finds nothing stored then. Errors: [module.Unavailable].
func (s *Store[V]) Remove(ctx context.Context, key string) error {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	if err := s.removeVerified(ctx, s.cfg.KeyPrefix+key); err != nil {
		return s.unavailable("remove", err)
	}
	return nil
}

// removeVerified removes a key and verifies that no master of a cluster has it. If
// one does, somebody may have stored it meanwhile: it is removed once more. It may
// also be on another master, where it cannot be removed.
func (s *Store[V]) removeVerified(ctx context.Context, key string) (err error) {
	for range 2 {
		if _, err = s.writer.run(ctx, removeScript, key, nil); err != nil {
			return err
		}
		if err = s.nodes.checkNotElsewhere(ctx, s.layout.redisKey(key)); err == nil {
			return nil
		}
	}
	return err
}

// Swap runs the layout's script once, for what edits are no good for: in the
// place of what cannot be read, or to bring back what was stored once. Args
// returns the script's arguments for a revision that follows onto, and done is false
// where something else is stored than they say. Errors: [module.Unavailable],
// after which the swap may be made or not.
func (s *Store[V]) Swap(ctx context.Context, key string, onto stored.Revision, args func(stored.Revision) []any) (done bool, err error) {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	key = s.cfg.KeyPrefix + key
	defer s.forget(key)
	if _, err := s.readVerified(ctx, key); fault.KindOf(err) == fault.Unavailable {
		return false, err // it may be where the swap would not find it
	}
	if done, err = s.writer.run(ctx, s.swap, key, args(s.committer.NextRevision(onto))); err != nil {
		return false, s.unavailable("swap", err)
	}
	return done, nil
}

// read returns what is stored. If it is cached, Redis is only asked whether that is
// stored still.
func (s *Store[V]) read(ctx context.Context, key string) (Stored[V], error) {
	if known, found := s.cache.get(s.layout.redisKey(key), key); found {
		current, err := ask(ctx, s, key, known.IsCurrent)
		if err != nil {
			return nil, err
		}
		if current {
			return known, nil
		}
	}
	whole, err := ask(ctx, s, key, s.layout.Read)
	if err == nil {
		s.with.Observer.Count(observe.WholeRead, s.layout.Observed, 1)
		s.remember(key, whole)
	}
	return whole, err
}

// maxAsks is how often a read is sent if its answers get lost. The client may have
// been told not to repeat commands.
const maxAsks = 3

// ask has a command sent for a key, and returns what its answer says. Errors are
// faults.
func ask[T, V any](ctx context.Context, s *Store[V], key string, command func(context.Context, redis.Cmdable, string) func() (T, error)) (value T, err error) {
	for range maxAsks {
		if value, err = askOnce(ctx, s, key, command); !isConnectionLost(err) || ctx.Err() != nil {
			break
		}
	}
	return value, s.checkError(err)
}

// isConnectionLost reports whether a connection broke after it was made, so that
// Redis may have the command.
func isConnectionLost(err error) bool {
	var network *net.OpError
	return errors.Is(err, io.EOF) || errors.As(err, &network) && network.Op != "dial"
}

func askOnce[T, V any](
	ctx context.Context, s *Store[V], key string, command func(context.Context, redis.Cmdable, string) func() (T, error),
) (value T, err error) {
	var answer func() (T, error)
	queue := func(ctx context.Context, client redis.Cmdable) { answer = command(ctx, client, key) }
	direct, err := s.reads.send(ctx, key, queue)
	if err != nil {
		return value, err
	}
	value, err = answer()
	if direct && err != nil && fault.KindOf(err) == fault.Internal {
		s.reads.sendAlone(ctx, key, queue)
		value, err = answer()
	}
	return value, err
}

// readVerified is read that verifies what it does not find: that another master of
// a cluster has the key, or may have it, is an error; see [nodes.checkNotElsewhere].
func (s *Store[V]) readVerified(ctx context.Context, key string) (Stored[V], error) {
	stored, err := s.read(ctx, key)
	if err != nil || stored.Exists() {
		return stored, err
	}
	elsewhere := s.nodes.checkNotElsewhere(ctx, s.layout.redisKey(key))
	if elsewhere == nil {
		return stored, nil
	}
	// Or somebody has stored it meanwhile.
	if stored, err = s.read(ctx, key); err != nil || stored.Exists() {
		return stored, err
	}
	return nil, s.unavailable("read", elsewhere)
}

// checkError gives the error of a read its kind.
func (s *Store[V]) checkError(err error) error {
	switch {
	case err == nil, fault.KindOf(err) != fault.Internal:
		return err
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return s.layout.Unreadable(errors.New("the key holds another type of value"))
	}
	return s.unavailable("read", err)
}

func (s *Store[V]) unavailable(doing string, err error) error {
	s.nodes.reload()
	return module.Unavailable(fmt.Errorf("%s: %s: %w", s.layout.Name, doing, err))
}

// snapshot is [Store.readVerified] for the committer.
func (s *Store[V]) snapshot(ctx context.Context, key string) (commit.Snapshot[V, Change[V]], error) {
	return s.readVerified(ctx, key)
}

// cached is what this host read or wrote last under a key, or [Layout.Missing]. Others
// may have written since.
func (s *Store[V]) cached(key string) (commit.Snapshot[V, Change[V]], bool) {
	redisKey := s.layout.redisKey(key)
	if known, found := s.cache.get(redisKey, key); found {
		return known, true
	}
	_, isSingle := s.client.(*redis.Client)
	return s.layout.Missing, isSingle && s.layout.Missing != nil && !s.cache.has(redisKey)
}

// remember caches what is stored under a key.
func (s *Store[V]) remember(key string, now Stored[V]) {
	s.cache.put(s.layout.redisKey(key), key, now)
}

// heard is [Users.Heard].
func (s *Store[V]) heard(key string, version int64) {
	s.cache.forgetBefore(s.layout.redisKey(s.cfg.KeyPrefix+key), version)
}

func (s *Store[V]) forget(key string) { s.cache.forget(s.layout.redisKey(key)) }

// write stores a change; see [commit.Access].
func (s *Store[V]) write(ctx context.Context, key string, c Change[V], revision stored.Revision) (done bool, err error) {
	if done, err = s.swapTo(ctx, key, c, revision); err != nil {
		err = s.unavailable("write", err)
	}
	if done {
		s.remember(key, c.Stored(revision))
	} else {
		s.forget(key)
	}
	return done, err
}

func (s *Store[V]) swapTo(ctx context.Context, key string, c Change[V], revision stored.Revision) (done bool, err error) {
	// A wait for durability has to follow on the same connection.
	if stager, is := c.(Stager); is && !s.cfg.Durability.isAsked() {
		if swap, staged := stager.StagedSwap(revision); staged {
			if done, possible, err := s.swapStaged(ctx, key, swap); possible {
				return done, err
			}
		}
	}
	return s.writer.run(ctx, s.swap, s.layout.redisKey(key), c.Args(revision))
}
