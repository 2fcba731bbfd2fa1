package match

import (
	"unicode"
	"unicode/utf8"
	"unsafe"
)

// Folding makes texts comparable without regard to case: characters that are equal
// under Unicode's simple case folding fold to one character, ASCII letters to lower
// case.

func foldRune(r rune) rune {
	switch {
	case r < rune(len(foldTable)):
		return rune(foldTable[r])
	case r >= firstCaseless && r <= lastCaseless:
		return r
	}
	return leastOfOrbit(r)
}

// The largest block without case, with CJK and kana.
const (
	firstCaseless = 0x2e80
	lastCaseless  = 0xa63f
)

var foldTable = newFoldTable()

func newFoldTable() (table [0x600]uint16) {
	for r := range table {
		table[r] = uint16(leastOfOrbit(rune(r)))
	}
	return table
}

func leastOfOrbit(r rune) rune {
	least := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		least = min(least, other)
	}
	if 'A' <= least && least <= 'Z' {
		return least + 'a' - 'A'
	}
	return least
}

func appendFolded(dst []byte, text string) []byte {
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf {
			dst = append(dst, lower[c])
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		dst = utf8.AppendRune(dst, foldRune(r))
		i += size
	}
	return dst
}

// asText shares memory with b: the caller must not change b afterwards.
func asText(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func fold(text string) string { return string(appendFolded(nil, text)) }

var lower = newLower()

func newLower() (table [utf8.RuneSelf]byte) {
	for c := range table {
		table[c] = byte(c)
		if 'A' <= c && c <= 'Z' {
			table[c] += 'a' - 'A'
		}
	}
	return table
}

// equalsFolded reports whether text folds to folded.
func equalsFolded(text, folded string) bool {
	i, j := 0, 0
	for i < len(text) && j < len(folded) {
		if c := text[i]; c < utf8.RuneSelf {
			if lower[c] != folded[j] {
				return false
			}
			i, j = i+1, j+1
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		other, otherSize := utf8.DecodeRuneInString(folded[j:])
		if foldRune(r) != other {
			return false
		}
		i, j = i+size, j+otherSize
	}
	return i == len(text) && j == len(folded)
}
