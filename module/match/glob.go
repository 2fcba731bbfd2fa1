package match

import (
	"strings"
	"unicode/utf8"
)

// glob is a pattern in which * matches any characters, none included, and ?
// exactly one (Matrix specification, appendices, "Glob-style matching"). A
// character is a Unicode code point, a line break like any other. It is
// compared with folded texts.
type glob struct {
	segments           []segment // what is between the stars
	pattern            string    // folded
	literal            bool      // it has neither * nor ?
	starred            bool      // it has a *
	leastBytes         int       // that a matching text has
	leadStar, tailStar bool
}

// segment is a part of a pattern without stars. It matches a part of a text
// that has as many characters as it has itself.
type segment struct {
	text   string // folded
	anchor string // the longest part of text without ?, which is looked for
	before int    // characters of the segment before its anchor
	gaps   bool   // it has a ?
}

func newGlob(pattern string) glob {
	g := glob{pattern: fold(pattern)}
	g.literal = !strings.ContainsAny(pattern, "*?")
	g.starred = strings.Contains(pattern, "*")
	for part := range strings.SplitSeq(g.pattern, "*") {
		if part == "" && g.starred {
			continue
		}
		g.segments = append(g.segments, newSegment(part))
		g.leastBytes += len(part)
	}
	g.leadStar = strings.HasPrefix(g.pattern, "*")
	g.tailStar = strings.HasSuffix(g.pattern, "*")
	return g
}

func newSegment(text string) segment {
	s := segment{text: text, gaps: strings.Contains(text, "?")}
	at := 0
	for part := range strings.SplitSeq(text, "?") {
		if len(part) > len(s.anchor) {
			s.anchor, s.before = part, utf8.RuneCountInString(text[:at])
		}
		at += len(part) + 1
	}
	return s
}

// untilGap returns what a text has before its first ?.
func untilGap(text string) string {
	text, _, _ = strings.Cut(text, "?")
	return text
}

// matchAt returns where the part of a text ends that begins at a place and
// matches the segment, -1 if there is none.
func (s *segment) matchAt(text string, at int) (end int) {
	if !s.gaps {
		if strings.HasPrefix(text[at:], s.text) {
			return at + len(s.text)
		}
		return -1
	}
	for i := range len(s.text) {
		switch {
		case at == len(text):
			return -1
		case s.text[i] == '?':
			at = nextRune(text, at)
		case s.text[i] != text[at]:
			return -1
		default:
			at++
		}
	}
	return at
}

// nextRune returns the place behind the character at a place.
func nextRune(text string, at int) int {
	for at++; at < len(text) && !utf8.RuneStart(text[at]); {
		at++
	}
	return at
}

// backRunes returns the place that is n characters before another, -1 if there
// are fewer.
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

// matchWhole reports whether a folded text matches from its start to its end.
func (g *glob) matchWhole(text string, m *meter) bool {
	switch {
	case g.literal:
		return text == g.pattern
	case len(text) < g.leastBytes:
		return false
	case !g.starred:
		return g.segments[0].matchAt(text, 0) == len(text)
	}
	at, middle := 0, g.segments
	if !g.leadStar {
		if at = middle[0].matchAt(text, 0); at < 0 {
			return false
		}
		middle = middle[1:]
	}
	last := len(middle) - 1
	if g.tailStar {
		last++
	}
	where := search{text: text, meter: m}
	for i := range middle[:last] {
		if at = where.first(&middle[i], at, 0); at < 0 {
			return false
		}
	}
	if g.tailStar {
		return true
	}
	start := backRunes(text, len(text), utf8.RuneCountInString(middle[last].text))
	return start >= at && middle[last].matchAt(text, start) == len(text)
}

// matchWords reports whether any part of a body matches that starts and ends
// at a word boundary.
func (g *glob) matchWords(b *body, m *meter) bool {
	if len(b.folded) < g.leastBytes {
		return false
	}
	where, at := search{b.folded, b, m}, 0
	for i := range g.segments {
		var bounds bounded
		if i == 0 && !g.leadStar {
			bounds |= startBounded
		}
		if i == len(g.segments)-1 && !g.tailStar {
			bounds |= endBounded
		}
		if at = where.first(&g.segments[i], at, bounds); at < 0 {
			return false
		}
	}
	return true
}
