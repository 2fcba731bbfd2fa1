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
	segments           []segment // what is between the stars; one more than there are groups of stars
	pattern            string    // folded
	literal            bool      // it has neither * nor ?
	starred            bool      // it has a *
	leastBytes         int       // that a matching text has
	leadStar, tailStar bool
}

// segment matches a part of a text, as many characters as it has itself.
type segment struct {
	source string // as it stands in the pattern
	pieces []piece
	tail   int // how many ? are behind the last piece
	anchor int // the piece that is looked for; there is none where there are no pieces
	before int // characters of the segment before its anchor
	runes  int // characters of the whole segment
}

// piece is a run of characters in a segment, behind some ?.
type piece struct {
	skip int
	text string
}

func newGlob(pattern string) glob {
	g := glob{pattern: fold(pattern)}
	g.literal = !strings.ContainsAny(pattern, "*?")
	g.starred = strings.Contains(pattern, "*")
	for part := range strings.SplitSeq(g.pattern, "*") {
		if part == "" && g.starred {
			continue
		}
		s := newSegment(part)
		g.segments = append(g.segments, s)
		g.leastBytes += s.leastBytes()
	}
	g.leadStar = strings.HasPrefix(g.pattern, "*")
	g.tailStar = strings.HasSuffix(g.pattern, "*")
	return g
}

func newSegment(part string) segment {
	s := segment{source: part, runes: utf8.RuneCountInString(part)}
	longest, passed := -1, 0
	for rest := part; rest != ""; {
		text := strings.TrimLeft(rest, "?")
		skip := len(rest) - len(text)
		end := strings.IndexByte(text, '?')
		if end < 0 {
			end = len(text)
		}
		text, rest = text[:end], text[end:]
		if text == "" {
			s.tail = skip
			break
		}
		if len(text) > longest {
			longest, s.anchor, s.before = len(text), len(s.pieces), passed+skip
		}
		passed += skip + utf8.RuneCountInString(text)
		s.pieces = append(s.pieces, piece{skip, text})
	}
	return s
}

func (s *segment) leastBytes() int {
	n := s.tail
	for _, p := range s.pieces {
		n += p.skip + len(p.text)
	}
	return n
}

// matchPrefix returns where the segment ends that begins at a place, -1 where
// none does.
func (s *segment) matchPrefix(text string, at int) (end int) {
	for i := range s.pieces {
		p := &s.pieces[i]
		if at = skipRunes(text, at, p.skip); at < 0 || !strings.HasPrefix(text[at:], p.text) {
			return -1
		}
		at += len(p.text)
	}
	return skipRunes(text, at, s.tail)
}

// skipRunes returns the place that is n characters behind another, -1 where
// the text is shorter or at is -1 already.
func skipRunes(text string, at, n int) int {
	for ; n > 0; n-- {
		if at >= len(text) {
			return -1
		}
		at++
		for at < len(text) && !utf8.RuneStart(text[at]) {
			at++
		}
	}
	return at
}

// backRunes returns the place that is n characters before another, -1 where
// there are fewer.
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
func (g *glob) matchWhole(text string) bool {
	switch {
	case g.literal:
		return text == g.pattern
	case len(text) < g.leastBytes:
		return false
	case !g.starred:
		return g.segments[0].matchPrefix(text, 0) == len(text)
	}
	at, middle := 0, g.segments
	if !g.leadStar {
		if at = middle[0].matchPrefix(text, 0); at < 0 {
			return false
		}
		middle = middle[1:]
	}
	last := len(middle) - 1
	if g.tailStar {
		last++
	}
	for i := range middle[:last] {
		if at = (search{text: text}).first(&middle[i], at, 0); at < 0 {
			return false
		}
	}
	if g.tailStar {
		return true
	}
	start := backRunes(text, len(text), middle[last].runes)
	return start >= at && middle[last].matchPrefix(text, start) == len(text)
}

// matchWords reports whether any part of a body matches that starts and ends
// at a word boundary.
func (g *glob) matchWords(b *body) bool {
	if len(b.folded) < g.leastBytes {
		return false
	}
	where := search{b.folded, b}
	if !g.starred {
		return where.first(&g.segments[0], 0, startBounded|endBounded) >= 0
	}
	at := 0
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
