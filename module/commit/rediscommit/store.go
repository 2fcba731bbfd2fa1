// Package rediscommit is package commit on Redis, with durability; its API may change at
// any time, except [Config], [Durability] and [Options]. Each store adds a [Codec].
//
// The package needs Redis 6.2 or later: a single node, sentinels or a cluster, shared
// by any number of hosts. Scripts for a change have a single key, so that they work
// while a cluster moves the key's slot.
package rediscommit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Store loads and updates values on Redis. It is safe for concurrent use, does no I/O
// in the background, and needs no closing.
type Store[V, R any] struct {
	codec  Codec[V, R]
	cfg    Config
	now    func() time.Time // see [Options]
	client redis.UniversalClient
	swap   *redisclient.Script

	pipelines *redisclient.Pipelines
	writer    *Writer

	cache     *cache[V, R]
	committer *commit.Committer[V, R]
}

// New returns a store on client, which must read from masters. The caller closes the
// client.
func New[V, R any](client redis.UniversalClient, cfg Config, o Options, codec Codec[V, R]) (*Store[V, R], error) {
	writer, err := NewWriter(client, codec.Name, codec.Observed, cfg, o)
	if err != nil {
		return nil, err
	}
	s := &Store[V, R]{
		codec: codec, cfg: cfg, now: o.Now, client: client, swap: redisclient.NewScript(codec.Swap),
		pipelines: writer.pipelines, writer: writer, cache: newCache[V, R](cfg.CacheBytes),
	}
	s.committer = s.newCommitter()
	return s, nil
}

func (s *Store[V, R]) newCommitter() *commit.Committer[V, R] {
	mode := commit.Written
	if s.cfg.Durability.IsRequired() {
		mode = commit.Confirmed
	}
	committer := commit.New(commit.Access[V, R]{
		Read: s.load, Cached: s.cached, Same: s.codec.Same, Write: s.write,
	}, mode)
	if s.now != nil {
		committer.SetClock(s.now)
	}
	committer.OnEvent(s.count)
	return committer
}

// removeScript removes a key. ARGV: the channel and the message about it, none for no
// message.
var removeScript = redisclient.NewScript(`
if redis.call('DEL', KEYS[1]) == 1 and ARGV[1] then redis.pcall('PUBLISH', ARGV[1], ARGV[2]) end
return 1`)

// Load returns the snapshot of a key, given without its prefix. It asks all masters of
// a cluster for a missing value, because an interrupted move of its slot can hide it.
// Errors: [module.Unavailable], also if another master may have the value; the codec's
// Unreadable.
func (s *Store[V, R]) Load(ctx context.Context, key string) (commit.Snapshot[V, R], error) {
	return s.load(ctx, s.cfg.KeyPrefix+key)
}

// Update changes the value of a key and returns the new snapshot; see
// [commit.Committer.Commit]. Errors: the error of edit, and those of Load.
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

// remove removes a key of any type, with the durability of a change. Errors:
// [module.Unavailable].
func (s *Store[V, R]) remove(ctx context.Context, key string) error {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	if err := s.removeVerified(ctx, s.cfg.KeyPrefix+key); err != nil {
		return s.unavailable("remove", err)
	}
	return nil
}

// removeVerified removes a key and checks that no master of a cluster has it. If one
// does, it tries once more, because another host may have stored the value again. It
// cannot remove a key from a master that does not own the slot.
func (s *Store[V, R]) removeVerified(ctx context.Context, key string) (err error) {
	var args []any
	if s.codec.Removed != nil {
		channel, message := s.codec.Removed(key)
		args = []any{channel, message}
	}
	for range 2 {
		if _, err = s.run(ctx, removeScript, key, args...); err != nil {
			return err
		}
		if err = s.pipelines.Elsewhere(ctx, &redisclient.Command{Key: key})[0]; err == nil {
			return nil
		}
	}
	return err
}

// Swap runs the codec's script once, to replace an unreadable value or to restore an
// old one. Args returns the script's arguments for a revision that follows base. Done
// is false if the stored value differs from the old one in the arguments. Errors:
// [module.Unavailable], after which the swap may have been made.
func (s *Store[V, R]) Swap(ctx context.Context, key string, base stored.Revision, args func(stored.Revision) []any) (done bool, err error) {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	key = s.cfg.KeyPrefix + key
	defer s.forget(key)
	if _, err := s.load(ctx, key); fault.KindOf(err) == fault.Unavailable {
		return false, err // another master may have the value
	}
	if done, err = s.run(ctx, s.swap, key, args(s.committer.NextRevision(base))...); err != nil {
		return false, s.unavailable("swap", err)
	}
	return done, nil
}

// load returns the stored snapshot. If the cache has one, load only asks Redis whether it
// is still stored.
func (s *Store[V, R]) load(ctx context.Context, key string) (commit.Snapshot[V, R], error) {
	ctx, cancel := s.cfg.Bound(ctx)
	defer cancel()
	if known, found := s.cache.get(key); found {
		current, _, err := ask(ctx, s, key, s.codec.Current(known))
		if err != nil {
			return commit.Snapshot[V, R]{}, err
		}
		if current {
			return known, nil
		}
	}
	whole, command, err := ask(ctx, s, key, s.codec.Read)
	if err == nil && !whole.Found {
		q := s.codec.Read
		q.IsMissing = func(now commit.Snapshot[V, R]) bool { return !now.Found }
		whole, err = askAgain(ctx, s, q, whole, command, s.pipelines.Elsewhere(ctx, command)[0])
	}
	if err == nil {
		s.countWhole(key, whole)
	}
	return whole, err
}

func ask[T, V, R any](ctx context.Context, s *Store[V, R], key string, q Query[T]) (T, *redisclient.Command, error) {
	r := &read[T]{query: q, key: key}
	command := r.command()
	value, err := r.result(s.pipelines.Do(ctx, redisclient.Kind{IsRead: true}, command)[0])
	return value, command, s.checkError(err)
}

// askAgain sends a query again whose reply, that the key is missing, may be untrue. It
// gets what [redisclient.Pipelines.Elsewhere] has returned for the command.
func askAgain[T, V, R any](ctx context.Context, s *Store[V, R], q Query[T], missing T, command *redisclient.Command, otherMaster error) (T, error) {
	if otherMaster == nil && !command.Asked {
		return missing, nil
	}
	value, _, err := ask(ctx, s, command.Key, q) // another host may have stored it, too
	if err == nil && otherMaster != nil && q.IsMissing(value) {
		err = s.unavailable("read", otherMaster)
	}
	return value, err
}

func (s *Store[V, R]) checkError(err error) error {
	switch {
	case err == nil, fault.KindOf(err) != fault.Internal:
		return err
	case redisclient.IsWrongType(err):
		return s.codec.Unreadable(errors.New("the key holds another type of value"))
	}
	return s.unavailable("read", err)
}

func (s *Store[V, R]) unavailable(doing string, err error) error {
	return module.Unavailable(fmt.Errorf("%s: %s: %w", s.codec.Name, doing, err))
}

// cached returns the cached snapshot of a key, which may be stale, or the assumed missing
// value; see [Codec.AssumeMissing].
func (s *Store[V, R]) cached(key string) (known commit.Snapshot[V, R], found bool) {
	if known, found = s.cache.get(key); found {
		return known, true
	}
	_, isSingle := s.client.(*redis.Client)
	return known, isSingle && s.codec.AssumeMissing
}

func (s *Store[V, R]) remember(key string, now commit.Snapshot[V, R]) {
	s.cache.put(key, cached[V, R]{s.codec.Bytes(now), now})
}

// countWhole caches a snapshot that was read as a whole, and reports the read to the
// observer.
func (s *Store[V, R]) countWhole(key string, now commit.Snapshot[V, R]) {
	s.count(observe.WholeRead)
	s.remember(key, now)
}

func (s *Store[V, R]) count(event observe.Event) { s.writer.observer.Count(event, s.codec.Observed, 1) }

func (s *Store[V, R]) forget(key string) { s.cache.forget(key) }

func (s *Store[V, R]) write(ctx context.Context, u commit.Update[V, R]) (now commit.Snapshot[V, R], done bool, err error) {
	swap := s.codec.Prepare(u)
	if done, err = s.run(ctx, s.swap, u.Key, swap.Args...); err != nil {
		err = s.unavailable("write", err)
	}
	if done {
		s.remember(u.Key, swap.Now)
	} else {
		s.forget(u.Key)
	}
	return swap.Now, done, err
}

var errNothingChanged = fmt.Errorf("%w: the script replied 0", redisclient.ErrReplied)

// run runs a script with one key that replies 1 or 0. Done means that it replied 1 and
// the change has its durability.
func (s *Store[V, R]) run(ctx context.Context, script *redisclient.Script, key string, args ...any) (done bool, err error) {
	call := script.Call([]string{key}, args...)
	command := call.Command()
	command.Queue = func(ctx context.Context, to redisclient.Sender) func() error {
		check := call.Queue(ctx, to)
		return func() error {
			if err := check(); err != nil {
				return err
			}
			done, err := call.Reply.Bool()
			if err == nil && !done {
				err = errNothingChanged
			}
			return err
		}
	}
	err = s.writer.send(ctx, redisclient.Kind{Durability: s.cfg.Durability}, command)[0]
	if errors.Is(err, errNothingChanged) {
		return false, nil
	}
	return err == nil, err
}
