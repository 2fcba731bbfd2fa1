package rediscommit

import (
	"fmt"

	"github.com/pushfx/pushfx/module/stored"
)

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

// HasSuffix returns a Lua expression: whether KEYS[1] has the [Suffix] in the arguments
// from arg on.
func HasSuffix(arg int) string {
	return fmt.Sprintf("redis.call('GETRANGE', KEYS[1], ARGV[%d], ARGV[%d]) == ARGV[%d]", arg, arg+1, arg+2)
}
