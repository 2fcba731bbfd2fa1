package match

import (
	"strings"
	"unicode/utf8"
)

// search is for the parts of a text that segments match.
type search struct {
	text string
	body *body // whose text it is, for its word boundaries; nil where there are none
}

// bounded says which ends of a match must be word boundaries.
type bounded uint8

const (
	startBounded bounded = 1 << iota
	endBounded
)

// patience is how many places are tried one by one before all are tried at
// once.
const patience = 64

// first returns the end of the first match of a segment, at or after from, that
// has the boundaries, -1 where there is none. What is first leaves most for the
// segments behind it, so no other has to be tried.
func (f search) first(s *segment, from int, bounds bounded) (end int) {
	if len(s.pieces) == 0 {
		return f.firstOfAny(s.tail, from, bounds)
	}
	anchor := s.pieces[s.anchor].text
	for at, tries := from, 0; at <= len(f.text); at, tries = at+1, tries+1 {
		if tries > patience && s.hasGaps() {
			return f.firstOfAll(s, from, bounds)
		}
		i := strings.Index(f.text[at:], anchor)
		if i < 0 {
			return -1
		}
		at += i
		start := backRunes(f.text, at, s.before)
		if start < from {
			continue
		}
		if bounds&startBounded != 0 && !f.body.isBoundary(start) {
			at += f.body.nextBoundary(start) - start - 1 // from there the anchor is at least as far as here
			continue
		}
		if end := s.matchPrefix(f.text, start); end >= 0 && f.endsWell(end, bounds) {
			return end
		}
	}
	return -1
}

// hasGaps reports whether the segment has a ?.
func (s *segment) hasGaps() bool { return len(s.pieces) > 1 || s.pieces[0].skip > 0 || s.tail > 0 }

func (f search) endsWell(end int, bounds bounded) bool {
	return bounds&endBounded == 0 || f.body.isBoundary(end)
}

// firstOfAny is first for a segment of n times ?.
func (f search) firstOfAny(n, from int, bounds bounded) (end int) {
	start, end := from, skipRunes(f.text, from, n)
	for end >= 0 {
		if (bounds&startBounded == 0 || f.body.isBoundary(start)) && f.endsWell(end, bounds) {
			return end
		}
		start, end = skipRunes(f.text, start, 1), skipRunes(f.text, end, 1)
	}
	return -1
}

// firstOfAll is first for a segment with ?, where trying one place after the
// other would take as many steps as text and segment have characters,
// multiplied: 64 characters of the segment are compared at a time, which is the
// algorithm known as Shift-And.
func (f search) firstOfAll(s *segment, from int, bounds bounded) (end int) {
	text := f.text[from:]
	places := utf8.RuneCountInString(text) - s.runes + 1
	if places <= 0 {
		return -1
	}
	matches := make([]uint64, (places+63)/64)
	for offset, rest := 0, s.source; rest != ""; {
		chunk := rest[:min(len(rest), skipUpTo(rest, 64))]
		rest = rest[len(chunk):]
		some := markChunk(matches, text, chunk, offset, places)
		if !some {
			return -1
		}
		offset += utf8.RuneCountInString(chunk)
	}
	return f.firstMarked(matches, from, s.runes, bounds)
}

// skipUpTo returns the length of the first n characters, or of all.
func skipUpTo(text string, n int) int {
	if end := skipRunes(text, 0, n); end >= 0 {
		return end
	}
	return len(text)
}

// markChunk keeps of matches, which has a bit for each character of text at
// which a segment may start, those where a chunk of the segment matches, which
// is at an offset in it. At offset 0 all are kept that match.
func markChunk(matches []uint64, text, chunk string, offset, places int) (some bool) {
	masks := newRuneMasks(chunk)
	last := utf8.RuneCountInString(chunk) - 1
	var state, word uint64
	at := -last - offset // the place to which the chunk belongs if it ends here
	for _, r := range text {
		state = (state<<1 | 1) & masks.of(r)
		if at >= 0 {
			word |= state >> last & 1 << (at & 63)
			if at == places-1 || at&63 == 63 {
				if offset > 0 {
					word &= matches[at>>6]
				}
				matches[at>>6] = word
				some = some || word != 0
				word = 0
			}
			if at == places-1 {
				break
			}
		}
		at++
	}
	return some
}

// runeMasks tells for each character where a chunk of a segment has it.
type runeMasks struct {
	ascii  [utf8.RuneSelf]uint64
	others map[rune]uint64
	any    uint64 // where the chunk has ?
}

func newRuneMasks(chunk string) *runeMasks {
	m := &runeMasks{others: map[rune]uint64{}}
	bit := uint64(1)
	for _, r := range chunk {
		switch {
		case r == '?':
			m.any |= bit
		case r < utf8.RuneSelf:
			m.ascii[r] |= bit
		default:
			m.others[r] |= bit
		}
		bit <<= 1
	}
	return m
}

func (m *runeMasks) of(r rune) uint64 {
	if r < utf8.RuneSelf {
		return m.ascii[r] | m.any
	}
	return m.others[r] | m.any
}

// firstMarked returns the end of the first match that has the boundaries.
func (f search) firstMarked(matches []uint64, from, runes int, bounds bounded) (end int) {
	start, end := from, skipRunes(f.text, from, runes)
	for place := 0; end >= 0 && place>>6 < len(matches); place++ {
		marked := matches[place>>6]>>(place&63)&1 != 0
		if marked && (bounds&startBounded == 0 || f.body.isBoundary(start)) && f.endsWell(end, bounds) {
			return end
		}
		start, end = skipRunes(f.text, start, 1), skipRunes(f.text, end, 1)
	}
	return -1
}
