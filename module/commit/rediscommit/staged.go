package rediscommit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// StagedSwap replaces a string in two steps: a SET stages the new string under a
// temporary key, and a script renames that key if the old string is still stored.
//
// Redis copies the arguments of a script several times, and its Lua hashes every byte.
// A string of 1 MB blocks Redis for 7 ms as an argument, and for less than 1 ms when
// staged. Below 5 KB a staged swap is slower.
type StagedSwap struct {
	Old Suffix
	New string

	// The script publishes Message on Channel, unless Message is empty.
	Channel, Message string
}

// Suffix is the end of a stored string, from its latest write on; see
// [stored.LastWrite]. It identifies the string, because writes are unique, but misses
// an edit by hand that keeps the string's length and end.
type Suffix struct {
	At   int // offset in the string
	Text string
}

// SuffixOf returns the suffix of a string; found is false if the string does not name
// its latest write.
func SuffixOf(text string, revision stored.Revision) (s Suffix, found bool) {
	s.Text = stored.LastWrite(text, revision)
	s.At = len(text) - len(s.Text)
	return s, s.Text != ""
}

// Args returns the arguments for [HasSuffix].
func (s Suffix) Args() []any { return []any{s.At, s.limit(), s.Text} }

// limit is the last offset that a script reads: one byte behind the suffix. A longer
// string has this byte, so it differs from the suffix.
func (s Suffix) limit() int { return s.At + len(s.Text) }

// stagedLife is the expiry of a staged string, longer than its script may take to
// arrive.
const stagedLife = 10 * time.Second

// HasSuffix returns a Lua expression: whether KEYS[1] has the [Suffix] in the arguments
// from arg on.
func HasSuffix(arg int) string {
	return fmt.Sprintf("redis.call('GETRANGE', KEYS[1], ARGV[%d], ARGV[%d]) == ARGV[%d]", arg, arg+1, arg+2)
}

// stagedSwapScript renames the staged string if the old string is still stored; it
// fails without a staged string. KEYS: the string, the staged string. ARGV: 1 to 3 the
// [Suffix.Args] of the old string, 4 the channel, 5 the message (may be empty).
var stagedSwapScript = redisclient.NewScript(`
if not (` + HasSuffix(1) + `) then
	redis.call('DEL', KEYS[2])
	return 0
end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('PERSIST', KEYS[1])
if ARGV[5] ~= '' then redis.pcall('PUBLISH', ARGV[4], ARGV[5]) end
return 1`)

// errStagedRefused means that the server refused a staged swap: while a slot moves, the two
// keys may be on two nodes. Nothing has changed, and the codec's script, which has one
// key, can still swap.
var errStagedRefused = fmt.Errorf("%w: the staged swap is refused", redisclient.ErrReplied)

// swapStaged makes a staged swap. Errors: also errStagedRefused.
func (s *Store[V, R]) swapStaged(ctx context.Context, key string, staged StagedSwap) (done bool, err error) {
	keys := []string{key, stored.Staged(key, rand.Text()[:stagedTokenLength])}
	call := stagedSwapScript.Call(keys, append(staged.Old.Args(), staged.Channel, staged.Message)...)
	queue := func(ctx context.Context, to redisclient.Sender) func() error {
		set := to.Set(ctx, keys[1], staged.New, stagedLife)
		check := call.Queue(ctx, to)
		return func() error {
			err := errors.Join(set.Err(), check())
			if refusal := redis.Error(nil); !redis.HasErrorPrefix(err, "NOSCRIPT") && errors.As(err, &refusal) {
				return fmt.Errorf("%w: %s", errStagedRefused, refusal.Error())
			}
			return err
		}
	}
	command := &redisclient.Command{Key: key, Queue: queue, IsLarge: true}
	if err = s.pipelines.Do(ctx, redisclient.Kind{}, command)[0]; err != nil {
		return false, err
	}
	return call.Reply.Bool()
}

// stagedTokenLength is 13 letters of 5 random bits.
const stagedTokenLength = 13
