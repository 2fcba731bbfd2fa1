package match

import (
	"strings"
	"unicode/utf8"
)

// glob is a pattern: * matches any number of characters, ? exactly one (Matrix
// specification, appendices, "Glob-style matching"). A character is a Unicode code
// point, including line breaks.
type glob struct {
	pattern    string // folded, without repeated stars
	literal    bool   // it has neither * nor ?
	leastBytes int    // least size of a matching text
}

func newGlob(pattern string) glob {
	folded := fold(pattern)
	for strings.Contains(folded, "**") {
		folded = strings.ReplaceAll(folded, "**", "*")
	}
	return glob{
		pattern: folded, literal: !strings.ContainsAny(folded, "*?"),
		leastBytes: len(folded) - strings.Count(folded, "*"),
	}
}

// segment is a part of a pattern without stars. Each of its characters matches one
// character.
type segment struct {
	text   string // folded
	anchor string // a part of text without ?; a search finds it first
	before int    // characters before the anchor
	gaps   bool   // it has a ?
}

// maxAnchor is the maximum length of an anchor: [strings.Index] is slow for long
// strings in texts with many near matches.
const maxAnchor = 24

// newSegment uses the longest part without ? as anchor. It does not allocate.
func newSegment(text string) segment {
	s := literalSegment(text)
	if s.gaps = strings.Contains(text, "?"); !s.gaps {
		return s
	}
	longest, at, start := 0, 0, 0
	for i := 0; i <= len(text); i++ {
		if i < len(text) && text[i] != '?' {
			continue
		}
		if i-start > longest {
			longest, at = i-start, start
		}
		start = i + 1
	}
	s.anchor, s.before = text[at:at+min(longest, maxAnchor)], utf8.RuneCountInString(text[:at])
	return s
}

// literalSegment matches ? literally.
func literalSegment(text string) segment {
	return segment{text: text, anchor: text[:min(len(text), maxAnchor)]}
}

func (s *segment) isGap(c byte) bool { return s.gaps && c == '?' }

// matchAt returns the end of the match that starts at a position, or -1.
func (s *segment) matchAt(text string, at int, m *meter) (end int) {
	if !s.gaps {
		m.spend(len(s.text) / comparedPerUnit)
		if strings.HasPrefix(text[at:], s.text) {
			return at + len(s.text)
		}
		return -1
	}
	for i := range len(s.text) {
		switch {
		case at == len(text):
			m.spend(i)
			return -1
		case s.text[i] == '?':
			at = nextRune(text, at)
		case s.text[i] != text[at]:
			m.spend(i)
			return -1
		default:
			at++
		}
	}
	m.spend(len(s.text))
	return at
}

func nextRune(text string, at int) int {
	for at++; at < len(text) && !utf8.RuneStart(text[at]); {
		at++
	}
	return at
}

// backRunes returns the position n characters earlier, or -1.
func backRunes(text string, at, n int) int {
	for ; n > 0; n-- {
		if at <= 0 {
			return -1
		}
		at--
		for at > 0 && !utf8.RuneStart(text[at]) {
			at--
		}
	}
	return at
}

func (g *glob) matchWhole(text string, m *meter) bool {
	if m.isEmpty() || len(text) < g.leastBytes {
		return false
	}
	m.spend(tryWork)
	head, rest, starred := strings.Cut(g.pattern, "*")
	at := endSegment(head).matchAt(text, 0, m)
	if !starred || at < 0 {
		return at == len(text)
	}
	middle, tail := "", rest
	if star := strings.LastIndexByte(rest, '*'); star >= 0 {
		middle, tail = rest[:star], rest[star+1:]
	}
	where := search{text: text, meter: m}
	for part := range strings.SplitSeq(middle, "*") {
		if at = where.firstPart(part, at, 0); at < 0 {
			return false
		}
	}
	m.spend(len(tail))
	from := backRunes(text, len(text), utf8.RuneCountInString(tail))
	return from >= at && endSegment(tail).matchAt(text, from, m) == len(text)
}

// endSegment returns a segment without an anchor, for the start or the end of a text.
func endSegment(text string) *segment { return &segment{text: text, gaps: strings.Contains(text, "?")} }

// matchWords searches for the parts between the stars, one after the other. The first
// part must start at a word boundary, and the last part must end at one.
func (g *glob) matchWords(b *body, m *meter) bool {
	if len(b.folded) < g.leastBytes {
		return false
	}
	where, at := search{b.folded, b, m}, 0
	bounds := startBounded
	for rest, isLast := g.pattern, false; !isLast; {
		part, after, found := strings.Cut(rest, "*")
		if rest, isLast = after, !found; isLast {
			bounds |= endBounded
		}
		if at = where.firstPart(part, at, bounds); at < 0 {
			return false
		}
		bounds = 0
	}
	return true
}
