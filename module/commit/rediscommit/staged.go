package rediscommit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/stored"
)

// StagedSwap stores a string in the place of another: it first stages the new
// string under a key of its own, beside the other, and then has a script rename it.
//
// Redis copies the arguments of a script several times, and its Lua hashes every
// byte of them: 25 µs for a string of 8 KB, 7 ms for one of a megabyte, in which it
// serves nobody else. So the new string comes with a SET, and the script only
// checks whether it may take its place: 15 µs and less than 1 ms. A string below 5 KB
// takes more that way.
type StagedSwap struct {
	Old End
	New string

	// Channel and Message are what the script publishes, nothing if Message is
	// empty.
	Channel, Message string
}

// End is the end of a stored string, and where it is: enough to tell the string
// from every other that was stored in its place if it names the write that did it;
// see [stored.LastWrite]. Who changes a string by hand and leaves both its length
// and its end as they are, is not noticed.
type End struct {
	At   int // from the start of the string
	Text string
}

// EndOf returns the end of a string that begins with its last write; found is
// false if the string does not have one.
func EndOf(text string, last stored.Revision) (end End, found bool) {
	end.Text = stored.LastWrite(text, last)
	end.At = len(text) - len(end.Text)
	return end, end.Text != ""
}

// Args are the arguments for [HasEnd].
func (e End) Args() []any { return []any{e.At, e.limit(), e.Text} }

// limit is the last byte that is asked for. The string has none there: an answer
// that goes so far is that of a longer string.
func (e End) limit() int { return e.At + len(e.Text) }

// stagedLife is how long a staged string stays that never took its place: longer
// than the script can take to come after it.
const stagedLife = 10 * time.Second

// HasEnd is an expression for scripts: whether the string of KEYS[1] has the [End]
// whose arguments begin with the one of a number.
func HasEnd(arg int) string {
	return fmt.Sprintf("redis.call('GETRANGE', KEYS[1], ARGV[%d], ARGV[%d]) == ARGV[%d]", arg, arg+1, arg+2)
}

// stagedSwapScript puts the staged string in the place of the old one.
//
// KEYS: the string's, and that of the staged one. ARGV: the end of the old one, the
// channel, and the message or nothing. An error says that there is no staged string.
var stagedSwapScript = redis.NewScript(`
if not (` + HasEnd(1) + `) then
	redis.call('DEL', KEYS[2])
	return 0
end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('PERSIST', KEYS[1])
if ARGV[5] ~= '' then redis.pcall('PUBLISH', ARGV[4], ARGV[5]) end
return 1`)

// swapStaged makes a staged swap. Possible is false if the server refused a part of
// it: while a slot moves, the two keys may be on two nodes. Then nothing has
// changed, and a script with one key has an answer.
func (s *Store[V, R]) swapStaged(ctx context.Context, key string, staged StagedSwap) (done, possible bool, err error) {
	keys := []string{key, stored.Staged(key, rand.Text()[:tokenLength])}
	args := append(staged.Old.Args(), staged.Channel, staged.Message)
	var set *redis.StatusCmd
	var swap *redis.Cmd
	// The pipeline's own error is that of one of the commands.
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		set = p.Set(ctx, keys[1], staged.New, stagedLife)
		swap = p.EvalSha(ctx, stagedSwapScript.Hash(), keys, args...)
		return nil
	})
	if set.Err() == nil && redis.HasErrorPrefix(swap.Err(), "NOSCRIPT") {
		swap = stagedSwapScript.Eval(ctx, s.client, keys, args...)
	}
	done, err = swap.Bool()
	if refused := redis.Error(nil); errors.As(err, &refused) {
		_ = s.client.Del(ctx, keys[1]).Err() // else it expires
		return false, false, nil
	}
	return done, true, err
}

// tokenLength makes the keys of staged strings differ: 13 letters of 5 bits.
const tokenLength = 13
