package match

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// workOf returns the work of comparing a pattern with a body.
func workOf(pattern string, b *body) int {
	g, m := newGlob(pattern), unlimited()
	before := m.left
	g.matchWords(b, m)
	return before - m.left
}

// TestPatternsTakeLinearWork compares patterns with bodies in which many places
// nearly match: the work is at most a constant for each byte of the body, a
// constant for each byte of the pattern, and for a segment of more than 64
// bytes as many times the body.
func TestPatternsTakeLinearWork(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	repeat := func(parts []string, n int) string {
		var b strings.Builder
		for b.Len() < n {
			b.WriteString(parts[random.IntN(len(parts))])
		}
		return b.String()
	}
	bodies := [][]string{
		{"a"}, {"ſ"}, {"\u212a", "a"}, {"a", "a", "a", "a", "b"}, {"a b"}, {"a", "-"}, {"ß", "a", " "}, {"-aa"},
		{strings.Repeat("a", 80) + "b"}, {strings.Repeat("a", 80) + "b "}, {strings.Repeat("ſ", 80) + "b"},
	}
	patterns := [][]string{{"*a?b"}, {"*s?b"}, {"*a?b "}, {"a?"}, {"a"}, {"*", "a", "?"}, {"*a", "?"}, {"s?"}, {"?"}, {"-aa"}, {"a "}, {"k", "?", "*"}, {"*a*b"}}
	for _, patternParts := range patterns {
		for _, bodyParts := range bodies {
			b := readBody(repeat(bodyParts, 32<<10))
			for _, pattern := range []string{repeat(patternParts, 1000) + "*x", "*" + repeat(patternParts, 1000) + "x", repeat(patternParts, 1000)} {
				longest := 0
				for part := range strings.SplitSeq(pattern, "*") {
					longest = max(longest, len(part)/64)
				}
				limit := (2+longest)*len(b.folded) + 300*len(pattern)
				if work := workOf(pattern, &b); work > limit {
					t.Errorf("%.40q... on %.20q...: %d units of work, want at most %d", pattern, b.folded, work, limit)
				}
			}
		}
	}
}
