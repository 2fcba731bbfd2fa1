package rediscommit

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
)

// Codec says how a store keeps its values on Redis, each under a key of its own. Raw is
// the form in which a value was read, to compare it with what is stored later.
type Codec[V, R any] struct {
	// Name is that of the store, for errors.
	Name string

	// Observed is what an observer knows it by: a name of package observe.
	Observed string

	// RedisKey returns the key on Redis, for [Codec.Swap], of a value's key with
	// its prefix. It is for values that are a part of what one Redis key holds;
	// both keys have the same hash tag. Nil if they are the same.
	RedisKey func(key string) string

	// Read reads what is stored under a key.
	Read Query[commit.Snapshot[V, R]]

	// Current asks whether a snapshot is still stored, without moving the value.
	Current func(commit.Snapshot[V, R]) Query[bool]

	// Same reports whether to store next would change nothing.
	Same func(old commit.Snapshot[V, R], next V) bool

	// Swap is a Lua script that stores a value if what is stored is what was
	// read. It gets the key and the arguments of a [Write], and returns 1 if it
	// did and 0 if not.
	Swap string

	// Prepare makes an update ready to be stored.
	Prepare func(commit.Update[V, R]) Swap[V, R]

	// Bytes is about how much memory a snapshot takes, 0 for one without a revision,
	// by which Current could tell it from others.
	Bytes func(commit.Snapshot[V, R]) int

	// Unreadable makes the fault for a value that cannot be read.
	Unreadable func(cause error) error

	// BeginsMissing has a change of a value that is not cached begin as if nothing were
	// stored, and read only if that is wrong: for values that are mostly made anew. On a
	// cluster it reads in any case, since another master may have the key.
	BeginsMissing bool
}

func (c Codec[V, R]) redisKey(key string) string {
	if c.RedisKey == nil {
		return key
	}
	return c.RedisKey(key)
}

// Query is a command with the reader of its answer.
type Query[T any] struct {
	// Ask sends the command for a key, or queues it where the client is a pipeline.
	Ask func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder

	// Read reads the answer. Errors are those of the client, or faults.
	Read func(key string, answer redis.Cmder) (T, error)
}

// Swap is an update that is ready to be stored.
type Swap[V, R any] struct {
	Args   []any                 // for the script of the codec
	Staged *StagedSwap           // another way to store it, nil for none
	Now    commit.Snapshot[V, R] // what is stored then
}

// Text returns the text of an answer, and whether there is one.
func Text(answer redis.Cmder) (text string, found bool, err error) {
	text, err = answer.(*redis.StringCmd).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return text, err == nil, err
}

// TextEnd is a [Codec.Current] for values that are a string with a revision at its end.
func TextEnd[V any](s commit.Snapshot[V, string]) Query[bool] {
	end, _ := EndOf(s.Raw, s.Revision)
	return Query[bool]{
		Ask: func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
			return client.GetRange(ctx, key, int64(end.At), int64(end.limit()))
		},
		Read: func(_ string, answer redis.Cmder) (bool, error) {
			text, _, err := Text(answer)
			return text == end.Text, err
		},
	}
}

// TextBytes is a [Codec.Bytes] for values that are a string with a revision at its end.
func TextBytes[V any](s commit.Snapshot[V, string]) int {
	if _, found := EndOf(s.Raw, s.Revision); !found {
		return 0
	}
	return len(s.Raw)
}

// Onto are the arguments that tell a script which string must be stored still: the
// [End] of a string with a revision, the whole of another, and nothing for none.
func Onto[V any](old commit.Snapshot[V, string]) []any {
	if end, found := EndOf(old.Raw, old.Revision); found {
		return end.Args()
	}
	if old.Found {
		return []any{old.Raw}
	}
	return nil
}
