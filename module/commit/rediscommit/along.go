package rediscommit

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/observe"
)

// LoadAfter prepares a [Store.Load] for the time after an update that another store
// makes with the context that it returns. On a single server the read goes along
// with the write, behind it in the same pipeline, so that its answer is there when
// the update returns. Where it could not go along, load sends it: on a cluster,
// whose nodes keep no order among them, with a durability that is waited for, or if
// the update has found nothing to write.
//
// The context is for one update, by whoever calls load then.
func (s *Store[V]) LoadAfter(ctx context.Context, key string) (
	update context.Context, load func(context.Context) (commit.State[V], error),
) {
	var answer func() (Stored[V], bool)
	along := &alongRead{client: s.client, queue: func(ctx context.Context, client redis.Cmdable) {
		answer = s.queueRead(ctx, client, s.cfg.KeyPrefix+key)
	}}
	return context.WithValue(ctx, alongKey{}, along), func(ctx context.Context) (commit.State[V], error) {
		if along.sent {
			if stored, ok := answer(); ok {
				return commit.State[V]{Value: stored.Value(), Revision: stored.Revision()}, nil
			}
		}
		return s.Load(ctx, key)
	}
}

// queueRead queues what [Store.read] would ask first. The answer is ok if nothing
// more is to be asked.
func (s *Store[V]) queueRead(ctx context.Context, client redis.Cmdable, key string) (answer func() (Stored[V], bool)) {
	if known, found := s.cache.get(s.layout.redisKey(key), key); found {
		isCurrent := known.IsCurrent(ctx, client, key)
		return func() (Stored[V], bool) {
			current, err := isCurrent()
			if err == nil && !current {
				s.forget(key)
			}
			return known, current && err == nil
		}
	}
	read := s.layout.Read(ctx, client, key)
	return func() (Stored[V], bool) {
		whole, err := read()
		if err != nil {
			return nil, false
		}
		s.with.Observer.Count(observe.WholeRead, s.layout.Observed)
		s.remember(key, whole)
		return whole, true
	}
}

// alongRead is a read that may go along with a write.
type alongRead struct {
	client redis.UniversalClient
	queue  func(context.Context, redis.Cmdable)
	sent   bool // behind a write that was made
}

type alongKey struct{}

// alongWith returns the read that is to go along with a write that a client sends,
// nil if there is none.
func alongWith(ctx context.Context, client redis.UniversalClient) *alongRead {
	along, _ := ctx.Value(alongKey{}).(*alongRead)
	if _, isSingle := client.(*redis.Client); along == nil || !isSingle || along.client != client {
		return nil
	}
	return along
}

// runAlong runs the script, and sends a read behind it.
func (s *script) runAlong(ctx context.Context, along *alongRead, key string, args []any) (done bool, err error) {
	pipe := s.client.Pipeline()
	swap := s.lua.EvalSha(ctx, pipe, []string{key}, args...)
	along.queue(ctx, pipe)
	_, _ = pipe.Exec(ctx) // each command has its own error
	done, err = swap.Bool()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return s.lua.Run(ctx, s.client, []string{key}, args...).Bool()
	}
	along.sent = done && err == nil
	return done, err
}
