// Package rediscommit is package commit on Redis: the one place that holds the
// compare-and-set of the stores, and its durability. A store adds how its
// values are laid out.
//
// It works on Redis 6.2 or later as a single node, behind sentinels and as a
// cluster, with any number of hosts on one Redis. A script has one key, so that
// nothing crosses slots, and no answer of a cluster that moves a slot stands in
// its way. To scripts, values are opaque bytes.
package rediscommit

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// Layout says how the values of a store are kept, one key for each user.
type Layout[V any] struct {
	// Name is that of the store, for errors.
	Name string

	// Key is the user's key, without the prefix. The user id is its hash tag.
	Key func(user mxid.UserID) string

	// Read reads a key. Its errors are those of the client, or faults.
	Read func(ctx context.Context, client redis.Cmdable, key string) (Stored[V], error)

	// Swap is a Lua script that stores a value if what is stored is what was
	// read. It gets the key and the arguments of a [Change], and returns 1 if it
	// did and 0 if not.
	Swap string

	// Unreadable makes the fault for a value that cannot be read.
	Unreadable func(cause error) error
}

// Stored is what was read, with the stamp that is a part of it; see
// [commit.Snapshot].
type Stored[V any] interface {
	Value() V
	Stamp() commit.Stamp
	Change(next V) (Change, error)
}

// Change is a value to be stored in the place of a [Stored]; see
// [commit.Change].
type Change interface {
	IsEmpty() bool

	// Args are the arguments for the script that stores it with a stamp.
	Args(stamp commit.Stamp) []any
}

// Store loads and updates values on Redis. It is safe for concurrent use, does
// no I/O of its own accord, and needs no closing.
type Store[V any] struct {
	layout    Layout[V]
	cfg       Config
	client    redis.UniversalClient
	nodes     *nodes
	script    *script
	committer *commit.Committer[V]
}

// New returns a store on client, which stays the caller's. The client must read
// from masters.
func New[V any](client redis.UniversalClient, cfg Config, layout Layout[V]) (*Store[V], error) {
	if err := errors.Join(cfg.Validate(), cfg.Durability.fits(client)); err != nil {
		return nil, fmt.Errorf("%s: %w", layout.Name, err)
	}
	nodes := newNodes(client)
	s := &Store[V]{layout: layout, cfg: cfg, client: client, nodes: nodes, script: newScript(nodes, layout.Swap, cfg.Durability)}
	mode := commit.Written
	if cfg.Durability.isAsked() {
		mode = commit.Confirmed
	}
	s.committer = commit.New(s.snapshot, mode)
	return s, nil
}

// Load returns the stored value of a user, the zero V where there is none.
// Errors: [module.Unavailable], the layout's Unreadable.
func (s *Store[V]) Load(ctx context.Context, user mxid.UserID) (value V, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	if err := user.Validate(); err != nil {
		return value, fmt.Errorf("%s: %w", s.layout.Name, err)
	}
	stored, err := s.read(ctx, s.key(user))
	if err != nil {
		return value, err
	}
	return stored.Value(), nil
}

// Update changes the stored value of a user; see [commit.Committer.Commit].
// Errors: those of edit, of the layout's changes, and of Load.
func (s *Store[V]) Update(ctx context.Context, user mxid.UserID, edit func(*V) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
	defer cancel()
	if err := user.Validate(); err != nil {
		return fmt.Errorf("%s: %w", s.layout.Name, err)
	}
	err := s.committer.Commit(ctx, s.key(user), edit)
	if err != nil && ctx.Err() != nil && fault.KindOf(err) == fault.Internal {
		return s.unavailable("update", err)
	}
	return err
}

func (s *Store[V]) key(user mxid.UserID) string { return s.cfg.KeyPrefix + s.layout.Key(user) }

func (s *Store[V]) read(ctx context.Context, key string) (Stored[V], error) {
	stored, err := s.layout.Read(ctx, s.client, key)
	switch {
	case err == nil:
		return stored, nil
	case fault.KindOf(err) != fault.Internal:
		return nil, err
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, s.layout.Unreadable(errors.New("the key holds another type of value"))
	}
	return nil, s.unavailable("read", err)
}

func (s *Store[V]) unavailable(doing string, err error) error {
	s.nodes.lookAgain()
	return module.Unavailable(fmt.Errorf("%s: %s: %w", s.layout.Name, doing, err))
}

// snapshot joins what was read with the way to replace it.
func (s *Store[V]) snapshot(ctx context.Context, key string) (commit.Snapshot[V], error) {
	stored, err := s.read(ctx, key)
	if err != nil {
		return nil, err
	}
	return snapshot[V]{stored, s, key}, nil
}

type snapshot[V any] struct {
	Stored[V]
	store *Store[V]
	key   string
}

func (s snapshot[V]) Change(next V) (commit.Change, error) {
	c, err := s.Stored.Change(next)
	if err != nil {
		return nil, err
	}
	return change[V]{c, s.store, s.key}, nil
}

type change[V any] struct {
	Change
	store *Store[V]
	key   string
}

func (c change[V]) Write(ctx context.Context, stamp commit.Stamp) (done bool, err error) {
	done, err = c.store.script.run(ctx, c.key, c.Args(stamp))
	if err != nil {
		return false, c.store.unavailable("write", err)
	}
	return done, nil
}
