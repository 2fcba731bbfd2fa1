package rediscommit

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/redisclient"
)

// Codec defines how a store keeps its values on Redis. V is the type of a value, and R of
// its stored form.
type Codec[V, R any] struct {
	// Name is the store's name in errors.
	Name string

	// Observed is the store's name for observers, from package observe.
	Observed string

	Read Query[commit.Snapshot[V, R]]

	// Current asks whether a snapshot is still stored, without reading the whole value.
	Current func(commit.Snapshot[V, R]) Query[bool]

	// Same reports whether storing next would change nothing.
	Same func(old commit.Snapshot[V, R], next V) bool

	// Swap is a Lua script, run with the Redis key and the arguments of a [Swap]. If
	// the old value is still stored, it stores the new one and returns 1; otherwise it
	// returns 0.
	Swap string

	// Prepare encodes an update for the script.
	Prepare func(commit.Update[V, R]) Swap[V, R]

	// Bytes is the approximate memory of a snapshot; 0 means that it has no revision,
	// so that Current cannot identify it.
	Bytes func(commit.Snapshot[V, R]) int

	// Removed returns the message about the removal of a key, and its channel. Nil means
	// that removals are not published.
	Removed func(key string) (channel, message string)

	// Unreadable returns the fault for an unreadable value.
	Unreadable func(cause error) error

	// AssumeMissing lets a change of an uncached value start as if none were stored,
	// and read only if the write fails. It suits mostly new values. It has no effect on
	// a cluster, where another master may have the key.
	AssumeMissing bool
}

// Query is a command and the reader of its reply.
type Query[T any] struct {
	// Ask sends the command for a key, or queues it if the client is a pipeline.
	Ask func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder

	// Read reads the reply. Its errors are faults or errors of the client.
	Read func(key string, reply redis.Cmder) (T, error)

	// IsMissing reports whether the key is missing. It makes [ReadMany] ask other masters
	// for missing keys; nil means that it does not.
	IsMissing func(T) bool
}

// read is a query for one key.
type read[T any] struct {
	query Query[T]
	key   string
	reply redis.Cmder
}

func (r *read[T]) command() *redisclient.Command {
	return &redisclient.Command{Key: r.key, IsSingle: true, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
		r.reply = r.query.Ask(ctx, to, r.key)
		return r.reply.Err
	}}
}

// result returns the value of a reply. Err is the error of sending the command.
func (r *read[T]) result(err error) (value T, _ error) {
	if err != nil && !errors.Is(err, redis.Nil) {
		return value, err
	}
	return r.query.Read(r.key, r.reply)
}

// Swap is an encoded update.
type Swap[V, R any] struct {
	Args []any                 // for the codec's script
	Now  commit.Snapshot[V, R] // the snapshot after the update
}

// Text returns the text of a reply; found is false if the key is missing.
func Text(reply redis.Cmder) (text string, found bool, err error) {
	text, err = reply.(*redis.StringCmd).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return text, err == nil, err
}

// TextCurrent is a [Codec.Current] for strings with a revision at their end.
func TextCurrent[V any](s commit.Snapshot[V, string]) Query[bool] {
	suffix, _ := SuffixOf(s.Raw, s.Revision)
	return Query[bool]{
		Ask: func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
			return client.GetRange(ctx, key, int64(suffix.At), int64(suffix.limit()))
		},
		Read: func(_ string, reply redis.Cmder) (bool, error) {
			text, _, err := Text(reply)
			return text == suffix.Text, err
		},
	}
}

// TextBytes is a [Codec.Bytes] for strings with a revision at their end.
func TextBytes[V any](s commit.Snapshot[V, string]) int {
	if _, found := SuffixOf(s.Raw, s.Revision); !found {
		return 0
	}
	return len(s.Raw)
}

// CompareArgs returns the arguments by which a script compares the stored string with
// an old snapshot: its [Suffix], the whole string if it has no revision, nothing if it
// is missing.
func CompareArgs[V any](old commit.Snapshot[V, string]) []any {
	if suffix, found := SuffixOf(old.Raw, old.Revision); found {
		return suffix.Args()
	}
	if old.Found {
		return []any{old.Raw}
	}
	return nil
}
