package match

import (
	"strings"
	"unicode/utf8"
)

type search struct {
	text  string
	body  *body // for word boundaries; nil if the text is not a body
	meter *meter
}

// bounded has a bit for each end of a match that must be a word boundary.
type bounded uint8

const (
	startBounded bounded = 1 << iota
	endBounded
)

// After maxTries near matches, [search.scan] replaces single tries, which are fast only
// in ordinary texts.
const maxTries = 16

// firstPart finds the text between two stars. An empty text matches everywhere.
func (f *search) firstPart(part string, from int, bounds bounded) (end int) {
	if part == "" {
		return from
	}
	f.meter.spend(len(part) / 2)
	s := newSegment(part)
	return f.first(&s, from, bounds)
}

// first returns the end of the first match at or after from, or -1. All matches have
// the same length, so the first match leaves the most text for later segments.
func (f *search) first(s *segment, from int, bounds bounded) (end int) {
	at := from
	for range maxTries {
		if f.meter.isEmpty() {
			return -1
		}
		i := strings.Index(f.text[at:], s.anchor)
		if i < 0 {
			f.meter.spend((len(f.text) - at) / searchedPerUnit)
			return -1
		}
		f.meter.spend(i/searchedPerUnit + s.before + tryWork)
		at += i
		start := backRunes(f.text, at, s.before)
		if start >= from && f.startsWell(start, bounds) {
			if end := s.matchAt(f.text, start, f.meter); end >= 0 && f.endsWell(end, bounds) {
				return end
			}
		}
		if at == len(f.text) {
			return -1
		}
		at = nextRune(f.text, at)
	}
	return f.scan(s, max(from, backRunes(f.text, at, s.before)), bounds)
}

func (f *search) startsWell(start int, bounds bounded) bool {
	return bounds&startBounded == 0 || f.body.isBoundary(start)
}

func (f *search) endsWell(end int, bounds bounded) bool {
	return bounds&endBounded == 0 || f.body.isBoundary(end)
}

// scan finds the segment in one pass over the text. In a hostile text with a near match
// everywhere, single tries would read the same bytes many times.
func (f *search) scan(s *segment, from int, bounds bounded) (end int) {
	f.meter.spend(setupWork * (1 + len(s.text)/64))
	if len(s.text) <= 64 {
		return f.scanShort(s, from, bounds)
	}
	return f.scanLong(s, from, bounds)
}

// scanShort uses the Shift-And algorithm for segments of up to 64 bytes: bit i of the
// state is set if the text up to the current byte ends with the first i+1 bytes of the
// segment. A ? matches the first byte of a character; its bit stays set for the other
// bytes.
func (f *search) scanShort(s *segment, from int, bounds bounded) (end int) {
	var has [256]uint64 // positions of each byte in the segment
	var gaps uint64     // positions of ? in the segment
	for i := range len(s.text) {
		if c := s.text[i]; s.isGap(c) {
			gaps |= 1 << i
		} else {
			has[c] |= 1 << i
		}
	}
	last := uint64(1) << (len(s.text) - 1)
	stop := min(len(f.text), from+max(0, f.meter.left))
	var state uint64
	for at := from; at < stop; at++ {
		c := f.text[at]
		if !utf8.RuneStart(c) {
			state = state<<1&has[c] | state&gaps
		} else {
			state <<= 1
			if f.startsWell(at, bounds) {
				state |= 1
			}
			state &= has[c] | gaps
		}
		if state&last != 0 && f.isCharacterEnd(at+1) && f.endsWell(at+1, bounds) {
			f.meter.spend(at + 1 - from)
			return at + 1
		}
	}
	f.meter.spend(stop - from)
	if stop < len(f.text) {
		f.meter.exhausted = true
	}
	return -1
}

func (f *search) isCharacterEnd(at int) bool { return at == len(f.text) || utf8.RuneStart(f.text[at]) }

// scanLong is scanShort with a state of several words. It computes only words that can
// have a set bit.
func (f *search) scanLong(s *segment, from int, bounds bounded) (end int) {
	t := newLongTable(s)
	n, last := len(t.state), uint64(1)<<((len(s.text)-1)%64)
	low, high := n, -1 // the first and the last word with a set bit
	for at := from; at < len(f.text); at++ {
		carry := uint64(0)
		if utf8.RuneStart(f.text[at]) && f.startsWell(at, bounds) {
			carry, low = 1, 0
		}
		behind := max(low, min(high+2, n))
		f.meter.spend(longScanWork + (behind-low)/wordsPerUnit)
		if f.meter.isEmpty() {
			return -1
		}
		low, high = t.step(f.text[at], carry, low, behind)
		if high == n-1 && t.state[high]&last != 0 && f.isCharacterEnd(at+1) && f.endsWell(at+1, bounds) {
			return at + 1
		}
	}
	return -1
}

type longTable struct {
	state []uint64
	gaps  []uint64 // positions of ? in the segment
	has   []uint64 // by byte: the positions in the segment that the byte matches
}

func newLongTable(s *segment) *longTable {
	n := (len(s.text) + 63) / 64
	t := &longTable{state: make([]uint64, n), gaps: make([]uint64, n), has: make([]uint64, 256*n)}
	for i := range len(s.text) {
		if c := s.text[i]; s.isGap(c) {
			t.gaps[i/64] |= 1 << (i % 64)
		} else {
			t.has[int(c)*n+i/64] |= 1 << (i % 64)
		}
	}
	for c := range 256 {
		if utf8.RuneStart(byte(c)) {
			for i, gaps := range t.gaps {
				t.has[c*n+i] |= gaps
			}
		}
	}
	return t
}

// step reads a byte, computes state[first:behind], and returns the first and the last
// word with a set bit.
func (t *longTable) step(c byte, carry uint64, first, behind int) (low, high int) {
	low, high = len(t.state), -1
	row := int(c) * len(t.state)
	state, gaps, has := t.state[first:behind], t.gaps[first:behind], t.has[row+first:row+behind]
	continued := !utf8.RuneStart(c)
	for i, old := range state {
		now := (old<<1 | carry) & has[i]
		if continued {
			now |= old & gaps[i]
		}
		state[i], carry = now, old>>63
		if now != 0 {
			low, high = min(low, first+i), first+i
		}
	}
	return low, high
}
