// Package rediscommit is package commit on Redis; its API, but for [Config],
// [Durability] and [Options], may change at any time. It is the one place that holds the
// compare-and-set of the stores, and its durability. A store adds how its values are
// laid out.
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

// Store loads and updates values on Redis. It is safe for concurrent use, does
// no I/O of its own accord, and needs no closing.
type Store[V, R any] struct {
	codec  Codec[V, R]
	cfg    Config
	with   Options
	client redis.UniversalClient
	nodes  *nodes
	reads  *pipelines
	writer *Writer
	swap   *redis.Script

	cache     *cache[V, R]
	committer *commit.Committer[V, R]
}

// New returns a store on client, which stays the caller's. The client must read
// from masters.
func New[V, R any](client redis.UniversalClient, cfg Config, o Options, codec Codec[V, R]) (*Store[V, R], error) {
	if err := errors.Join(cfg.Validate(), cfg.Durability.fits(client)); err != nil {
		return nil, fmt.Errorf("%s: %w", codec.Name, err)
	}
	o.Observer = observe.Or(o.Observer)
	nodes := newNodes(client, o.WaitLimiter)
	s := &Store[V, R]{
		codec: codec, cfg: cfg, with: o, client: client, nodes: nodes, reads: newPipelines(nodes),
		writer: newWriter(nodes, codec.Name, codec.Observed, cfg, o.Observer), swap: redis.NewScript(codec.Swap),
		cache: newCache[V, R](cfg.CacheBytes),
	}
	s.committer = s.newCommitter()
	return s, nil
}

// View returns a store of parts of the same values, with a codec that has
// [Codec.RedisKey], and else differs in how values are read and changed.
func (s *Store[V, R]) View(codec Codec[V, R]) *Store[V, R] {
	view := *s
	view.codec = codec
	view.committer = view.newCommitter()
	return &view
}

func (s *Store[V, R]) newCommitter() *commit.Committer[V, R] {
	mode := commit.Written
	if s.cfg.Durability.isAsked() {
		mode = commit.Confirmed
	}
	committer := commit.New(commit.Access[V, R]{
		Read: s.readVerified, Cached: s.cached, Same: s.codec.Same, Write: s.write, LockKey: s.codec.redisKey,
	}, mode)
	if s.with.Now != nil {
		committer.SetClock(s.with.Now)
	}
	committer.OnEvent(func(event observe.Event) { s.with.Observer.Count(event, s.codec.Observed, 1) })
	return committer
}

// removeScript removes the key, whatever it holds.
var removeScript = redis.NewScript(`redis.call('DEL', KEYS[1]) return 1`)

// Load returns what is stored under a key, the zero V if nothing is. Before it says
// so, it asks every master of a cluster, which may have the key after a move of its
// slot that was interrupted. The key is given without its prefix. Errors: [module.Unavailable], the
// codec's Unreadable.
func (s *Store[V, R]) Load(ctx context.Context, key string) (commit.Snapshot[V, R], error) {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	return s.readVerified(ctx, s.cfg.KeyPrefix+key)
}

// Update changes what is stored under a key, and returns it as it is then; see
// [commit.Committer.Commit]. Errors: those of edit, of the codec's changes,
// and of Load.
func (s *Store[V, R]) Update(ctx context.Context, key string, edit func(*V) error) (commit.Snapshot[V, R], error) {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	key = s.cfg.KeyPrefix + key
	state, err := s.committer.Commit(ctx, key, edit)
	if errors.Is(err, commit.ErrOutcomeUnknown) || err != nil && ctx.Err() != nil && fault.KindOf(err) == fault.Internal {
		err = s.unavailable("update", err)
	}
	return state, err
}

// remove removes a key, whatever it holds, as durably as a change. A change
// that is under way finds nothing stored then. Errors: [module.Unavailable].
func (s *Store[V, R]) remove(ctx context.Context, key string) error {
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
func (s *Store[V, R]) removeVerified(ctx context.Context, key string) (err error) {
	for range 2 {
		if _, err = s.writer.run(ctx, removeScript, key, nil); err != nil {
			return err
		}
		if err = s.nodes.checkNotElsewhere(ctx, s.codec.redisKey(key)); err == nil {
			return nil
		}
	}
	return err
}

// Swap runs the codec's script once, for what edits are no good for: in the
// place of what cannot be read, or to bring back what was stored once. Args
// returns the script's arguments for a revision that follows onto, and done is false
// where something else is stored than they say. Errors: [module.Unavailable],
// after which the swap may be made or not.
func (s *Store[V, R]) Swap(ctx context.Context, key string, onto stored.Revision, args func(stored.Revision) []any) (done bool, err error) {
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
func (s *Store[V, R]) read(ctx context.Context, key string) (commit.Snapshot[V, R], error) {
	if known, found := s.cache.get(s.codec.redisKey(key), key); found {
		current, err := ask(ctx, s, key, s.codec.Current(known))
		if err != nil {
			return commit.Snapshot[V, R]{}, err
		}
		if current {
			return known, nil
		}
	}
	whole, err := ask(ctx, s, key, s.codec.Read)
	if err == nil {
		s.with.Observer.Count(observe.WholeRead, s.codec.Observed, 1)
		s.remember(key, whole)
	}
	return whole, err
}

// maxAsks is how often a read is sent if its answers get lost. The client may have
// been told not to repeat commands.
const maxAsks = 3

// ask sends a query for a key. Errors are faults.
func ask[T, V, R any](ctx context.Context, s *Store[V, R], key string, q Query[T]) (value T, err error) {
	for range maxAsks {
		if value, err = askOnce(ctx, s, key, q); !isConnectionLost(err) || ctx.Err() != nil {
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

func askOnce[T, V, R any](ctx context.Context, s *Store[V, R], key string, q Query[T]) (value T, err error) {
	var answer redis.Cmder
	queue := func(ctx context.Context, client redis.Cmdable) { answer = q.Ask(ctx, client, key) }
	direct, err := s.reads.send(ctx, key, queue)
	if err != nil {
		return value, err
	}
	value, err = q.Read(key, answer)
	if direct && err != nil && fault.KindOf(err) == fault.Internal {
		s.reads.sendAlone(ctx, key, queue)
		value, err = q.Read(key, answer)
	}
	return value, err
}

// readVerified is read that verifies what it does not find: that another master of
// a cluster has the key, or may have it, is an error; see [nodes.checkNotElsewhere].
func (s *Store[V, R]) readVerified(ctx context.Context, key string) (commit.Snapshot[V, R], error) {
	stored, err := s.read(ctx, key)
	if err != nil || stored.Found {
		return stored, err
	}
	elsewhere := s.nodes.checkNotElsewhere(ctx, s.codec.redisKey(key))
	if elsewhere == nil {
		return stored, nil
	}
	// Or somebody has stored it meanwhile.
	if stored, err = s.read(ctx, key); err != nil || stored.Found {
		return stored, err
	}
	return commit.Snapshot[V, R]{}, s.unavailable("read", elsewhere)
}

// checkError gives the error of a read its kind.
func (s *Store[V, R]) checkError(err error) error {
	switch {
	case err == nil, fault.KindOf(err) != fault.Internal:
		return err
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return s.codec.Unreadable(errors.New("the key holds another type of value"))
	}
	return s.unavailable("read", err)
}

func (s *Store[V, R]) unavailable(doing string, err error) error {
	s.nodes.reload()
	return module.Unavailable(fmt.Errorf("%s: %s: %w", s.codec.Name, doing, err))
}

// cached is the snapshot that this host read or wrote last under a key, or a missing
// one; see [Codec.BeginsMissing]. Other hosts may have written since.
func (s *Store[V, R]) cached(key string) (known commit.Snapshot[V, R], found bool) {
	redisKey := s.codec.redisKey(key)
	if known, found = s.cache.get(redisKey, key); found {
		return known, true
	}
	_, isSingle := s.client.(*redis.Client)
	return known, isSingle && s.codec.BeginsMissing && !s.cache.has(redisKey)
}

// remember caches what is stored under a key.
func (s *Store[V, R]) remember(key string, now commit.Snapshot[V, R]) {
	s.cache.put(s.codec.redisKey(key), cached[V, R]{key, s.codec.Bytes(now), now})
}

func (s *Store[V, R]) forget(key string) { s.cache.forget(s.codec.redisKey(key)) }

// write stores an update; see [commit.Access].
func (s *Store[V, R]) write(ctx context.Context, u commit.Update[V, R]) (now commit.Snapshot[V, R], done bool, err error) {
	swap := s.codec.Prepare(u)
	if done, err = s.store(ctx, u.Key, swap); err != nil {
		err = s.unavailable("write", err)
	}
	if done {
		s.remember(u.Key, swap.Now)
	} else {
		s.forget(u.Key)
	}
	return swap.Now, done, err
}

func (s *Store[V, R]) store(ctx context.Context, key string, swap Swap[V, R]) (done bool, err error) {
	// A wait for durability has to follow on the same connection.
	if swap.Staged != nil && !s.cfg.Durability.isAsked() {
		if done, possible, err := s.swapStaged(ctx, key, *swap.Staged); possible {
			return done, err
		}
	}
	return s.writer.run(ctx, s.swap, s.codec.redisKey(key), swap.Args)
}
