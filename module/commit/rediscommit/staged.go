package rediscommit

import (
	"context"
	"crypto/rand"
	"errors"
	"math/bits"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/stored"
)

// StagedSwap stores a string in the place of another: it first stages the new
// string under a key of its own, beside the other, and then has a script rename it.
//
// Redis copies the arguments of a script several times. For a string of a megabyte
// that takes it 7 ms, in which it serves nobody else; a plain SET takes less than
// half of one. So the new string comes with a SET, and the script only checks
// whether it may take its place.
type StagedSwap struct {
	Old, New string

	// Channel and Message are what the script publishes, nothing if Message is
	// empty.
	Channel, Message string
}

// Stager is a [Change] that may be made by a staged swap. What is stored is then
// compared by its [Fingerprint].
type Stager interface {
	Change

	// StagedSwap returns the swap that stores the change with a revision. Staged is
	// false if the layout's script is to store it.
	StagedSwap(revision stored.Revision) (swap StagedSwap, staged bool)
}

// stagedLife is how long a staged string stays that never took its place: longer
// than the script can take to come after it.
const stagedLife = 10 * time.Second

// HasFingerprint is a function for scripts, hasFingerprint(length, tail, bits):
// whether the string of KEYS[1] has a [Fingerprint].
const HasFingerprint = `
local function hasFingerprint(length, tail, bits)
	return redis.call('STRLEN', KEYS[1]) == tonumber(length)
		and redis.call('GETRANGE', KEYS[1], -#tail, -1) == tail
		and redis.call('BITCOUNT', KEYS[1]) == tonumber(bits)
end`

// stagedSwapScript puts the staged string in the place of the old one.
//
// KEYS: the string's, and that of the staged one. ARGV: length, last bytes and
// number of set bits of the old one, the channel, and the message or nothing. It
// returns -1 if there is no staged string.
const stagedSwapScript = HasFingerprint + `
if redis.call('EXISTS', KEYS[2]) == 0 then return -1 end
if not hasFingerprint(ARGV[1], ARGV[2], ARGV[3]) then
	redis.call('DEL', KEYS[2])
	return 0
end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('PERSIST', KEYS[1])
if ARGV[5] ~= '' then redis.pcall('PUBLISH', ARGV[4], ARGV[5]) end
return 1`

// swapStaged makes a staged swap. Possible is false if the server refused a part of
// it: while a slot moves, the two keys may be on two nodes. Then nothing has
// changed, and a script with one key has an answer.
func (s *Store[V]) swapStaged(ctx context.Context, key string, staged StagedSwap) (done, possible bool, err error) {
	keys := []string{key, stored.Staged(key, rand.Text()[:tokenLength])}
	args := append(Fingerprint(staged.Old), staged.Channel, staged.Message)
	var set *redis.StatusCmd
	var swap *redis.Cmd
	// The pipeline's own error is that of one of the commands.
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		set = p.Set(ctx, keys[1], staged.New, stagedLife)
		swap = p.EvalSha(ctx, s.stagedSwap.Hash(), keys, args...)
		return nil
	})
	if set.Err() == nil && redis.HasErrorPrefix(swap.Err(), "NOSCRIPT") {
		swap = s.stagedSwap.Eval(ctx, s.client, keys, args...)
	}
	answer, err := swap.Int()
	if refused := redis.Error(nil); errors.As(err, &refused) || err == nil && answer < 0 {
		_ = s.client.Del(ctx, keys[1]).Err() // else it expires
		return false, false, nil
	}
	return answer == 1, true, err
}

// tokenLength makes the keys of staged strings differ: 13 letters of 5 bits.
const tokenLength = 13

// Fingerprint returns what a script can compare with a stored string that ends with
// a revision, without all of it being an argument, which Redis copies: its length,
// its last bytes, and how many of its bits are set. Every write changes the
// revision. What somebody else changes without it shows in the others, unless it
// leaves the length, the last bytes and the number of bits as they are.
func Fingerprint(text string) []any {
	// A revision is hardly ever longer, and its end differs, too.
	const tailLength = 512
	return []any{len(text), text[max(0, len(text)-tailLength):], countBits(text)}
}

// countBits returns how many bits of a text are set.
func countBits(text string) (n int) {
	for ; len(text) >= 8; text = text[8:] {
		n += bits.OnesCount64(uint64(text[0]) | uint64(text[1])<<8 | uint64(text[2])<<16 | uint64(text[3])<<24 |
			uint64(text[4])<<32 | uint64(text[5])<<40 | uint64(text[6])<<48 | uint64(text[7])<<56)
	}
	for i := range len(text) {
		n += bits.OnesCount8(text[i])
	}
	return n
}
