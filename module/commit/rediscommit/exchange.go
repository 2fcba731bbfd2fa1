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

// Exchange is a string to be stored in the place of another.
//
// Redis copies what is an argument of a script several times. For a string of a
// megabyte that takes it 7 ms, in which it serves nobody else; a plain SET takes
// less than half of one. So the new string comes with a SET, under a key of its
// own beside the other, and the script only looks whether it may take its place.
type Exchange struct {
	Old, New string

	// What is published of it, where there is a message.
	Channel, Message string
}

// Exchanger is a [Change] that may be an exchange. What is stored is then
// compared by its [Likeness].
type Exchanger interface {
	Change

	// Exchange returns the exchange that stores the change with a revision.
	// Possible is false where it is for the script.
	Exchange(revision stored.Revision) (e Exchange, possible bool)
}

// nextLife is how long a new string stays that never took its place: longer than
// the script can take to come after it.
const nextLife = 10 * time.Second

// IsLike is a function for scripts, isLike(length, tail, bits): whether the string
// of KEYS[1] has a [Likeness].
const IsLike = `
local function isLike(length, tail, bits)
	return redis.call('STRLEN', KEYS[1]) == tonumber(length)
		and redis.call('GETRANGE', KEYS[1], -#tail, -1) == tail
		and redis.call('BITCOUNT', KEYS[1]) == tonumber(bits)
end`

// exchangeScript puts the new string in the place of the old one.
//
// KEYS: the string's, and that of the new one. ARGV: length, last bytes and
// number of set bits of the old one, the channel, and the message or nothing. It
// returns -1 where the new string is not there.
const exchangeScript = IsLike + `
if redis.call('EXISTS', KEYS[2]) == 0 then return -1 end
if not isLike(ARGV[1], ARGV[2], ARGV[3]) then
	redis.call('DEL', KEYS[2])
	return 0
end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('PERSIST', KEYS[1])
if ARGV[5] ~= '' then redis.pcall('PUBLISH', ARGV[4], ARGV[5]) end
return 1`

// exchange makes an exchange. Possible is false where the server refused a part
// of it: while a slot moves, the two keys may be on two nodes. Then nothing has
// changed, and a script with one key has an answer.
func (s *Store[V]) exchange(ctx context.Context, key string, e Exchange) (done, possible bool, err error) {
	keys := []string{key, key + ":next:" + rand.Text()[:nextLength]}
	args := append(Likeness(e.Old), e.Channel, e.Message)
	var set *redis.StatusCmd
	var swap *redis.Cmd
	// The pipeline's own error is that of one of the commands.
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		set = p.Set(ctx, keys[1], e.New, nextLife)
		swap = p.EvalSha(ctx, s.exchangeLua.Hash(), keys, args...)
		return nil
	})
	if set.Err() == nil && redis.HasErrorPrefix(swap.Err(), "NOSCRIPT") {
		swap = s.exchangeLua.Eval(ctx, s.client, keys, args...)
	}
	answer, err := swap.Int()
	if refused := redis.Error(nil); errors.As(err, &refused) || err == nil && answer < 0 {
		_ = s.client.Del(ctx, keys[1]).Err() // else it expires
		return false, false, nil
	}
	return answer == 1, true, err
}

// nextLength makes the keys of new strings differ: 13 letters of 5 bits.
const nextLength = 13

// Likeness returns what a script can compare with a stored string that ends with
// a revision, without all of it being an argument, which Redis copies: its length,
// its last bytes, and how many of its bits are set. Every write changes the
// revision; what somebody else changes without it shows in the others, but for a
// change of the same length and number of bits.
func Likeness(text string) []any {
	// Few revisions are longer, and their end differs, too.
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
